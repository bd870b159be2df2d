"""The order in which blocks are handed out, and when a block is free again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blis_sim.engine.kv_cache.block_pool import BlockPool
from tests.examples import examples

NUM_BLOCKS = 5


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
