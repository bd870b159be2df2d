"""The order in which blocks are handed out, and when a block is free again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blis_sim.engine.kv_cache.block_pool import BlockPool
from tests.examples import examples

NUM_BLOCKS = 5


def take_all(pool: BlockPool) -> list[int]:
    return [pool.take() for _ in range(pool.num_free)]


def test_blocks_never_used_are_handed_out_in_ascending_order() -> None:
    assert take_all(BlockPool(4)) == [0, 1, 2, 3]


def test_used_blocks_are_handed_out_in_the_order_they_became_free() -> None:
    pool = BlockPool(4)
    take_all(pool)
    for block in (2, 0, 3):
        pool.give_back(block)
    assert take_all(pool) == [2, 0, 3]


def test_blocks_never_used_come_before_those_given_back() -> None:
    pool = BlockPool(4)
    pool.give_back(pool.take())
    assert take_all(pool) == [1, 2, 3, 0]


def test_a_shared_block_is_free_only_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    pool.give_back(block)
    assert not pool.is_free(block)
    pool.give_back(block)
    assert pool.is_free(block)


def test_a_free_block_that_is_shared_leaves_the_free_list_from_the_middle() -> None:
    pool = BlockPool(3)
    for block in take_all(pool):
        pool.give_back(block)
    pool.share(1)
    assert take_all(pool) == [0, 2]


def test_a_block_given_back_again_goes_to_the_end() -> None:
    pool = BlockPool(3)
    for block in take_all(pool):
        pool.give_back(block)
    pool.share(0)
    pool.give_back(0)
    assert take_all(pool) == [1, 2, 0]


def test_blocks_given_back_to_be_reused_first_come_before_all_others_the_latest_first() -> None:
    pool = BlockPool(5)
    for _ in range(3):
        pool.take()
    pool.give_back(0)
    pool.give_back_to_reuse_first(1)
    pool.give_back_to_reuse_first(2)
    assert take_all(pool) == [2, 1, 3, 4, 0]


def test_used_and_free_make_up_all_blocks() -> None:
    pool = BlockPool(3)
    pool.take()
    assert (pool.num_used, pool.num_free) == (1, 2)


def test_the_check_finds_a_block_given_back_twice() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.give_back(block)
    pool.give_back(block)
    with pytest.raises(AssertionError, match=f"block {block} has -1 references"):
        pool.check()


class PoolAgainstLists(RuleBasedStateMachine):
    """The pool does what a plain list of free blocks with a dictionary of holders would do."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.free = list(range(NUM_BLOCKS))
        self.holders: dict[int, int] = {}
        """Contents of every block ever taken."""
        self.worthless: set[int] = set()
        """Free blocks that must not be shared, because their content is unknown."""

    @precondition(lambda self: self.free)
    @rule()
    def take(self) -> None:
        block = self.free.pop(0)
        self.worthless.discard(block)
        self.holders[block] = 1
        assert self.pool.take() == block

    @precondition(lambda self: self.holders.keys() - self.worthless)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders.keys() - self.worthless)))
        if not self.holders[block]:
            self.free.remove(block)
        self.holders[block] += 1
        self.pool.share(block)

    @precondition(lambda self: any(self.holders.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(block for block, count in self.holders.items() if count)))
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free.append(block)
        self.pool.give_back(block)

    @precondition(lambda self: 1 in self.holders.values())
    @rule(data=st.data())
    def give_back_to_reuse_first(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(block for block, count in self.holders.items() if count == 1)))
        self.holders[block] = 0
        self.worthless.add(block)
        self.free.insert(0, block)
        self.pool.give_back_to_reuse_first(block)

    @invariant()
    def free_blocks_are_counted(self) -> None:
        assert (self.pool.num_free, self.pool.num_used) == (len(self.free), NUM_BLOCKS - len(self.free))
        assert all(self.pool.is_free(block) == (count == 0) for block, count in self.holders.items())
        self.pool.check()


PoolAgainstLists.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestPoolAgainstLists = PoolAgainstLists.TestCase
