"""vLLM's KV cache: the blocks of each request, the blocks that are found again, and the order of reuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from blis_sim.engine.kv_cache.changes import BlocksStored, CacheChange
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.sequence import Sequence
from tests.engine.kv_cache.reuse import order_of_reuse
from tests.fakes import config

BLOCK = 4


def cache(total_kv_blocks: int = 9, **settings: bool | float | int) -> VllmKVCache:
    return VllmKVCache(config(total_kv_blocks, BLOCK, engine="vllm", **settings))


def sequence(
    name: str = "a", num_tokens: int = 10, group: str = "g", shared_tokens: int = 0, reads: bool = True
) -> Sequence:
    blocks = PrefixGroupBlocks(name, group, min(shared_tokens, num_tokens) // BLOCK)
    return Sequence(Request(name, num_tokens, 100, blocks, reads_prefix_cache=reads), 0)


def admit(kv: VllmKVCache, sequence: Sequence, num_tokens: int = 0, whole: bool = False, others: bool = False) -> bool:
    """Admit with the next `num_tokens` tokens after those found, by default all that are lacking."""
    hits = kv.cached_prefix(sequence)
    start = len(hits) * BLOCK
    lacking = sequence.num_tokens - start
    num_tokens = min(num_tokens or lacking, lacking)
    if not kv.admit(sequence, num_tokens, hits, whole, others):
        return False
    sequence.num_computed_tokens = start + num_tokens
    return True


def test_one_block_is_never_handed_out() -> None:
    assert cache(total_kv_blocks=9).num_blocks == 8


def test_a_prompt_is_found_again_up_to_its_last_full_block() -> None:
    kv = cache()
    first = sequence("a", 10, shared_tokens=10)
    admit(kv, first)
    assert kv.cached_prefix(sequence("b", 10, shared_tokens=10)) == first.block_ids[:2]


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_last_token_is_always_computed(num_cached_tokens: int, num_tokens: int) -> None:
    kv = cache(total_kv_blocks=20)
    admit(kv, sequence("a", num_cached_tokens, shared_tokens=30))
    found = kv.cached_prefix(sequence("b", num_tokens, shared_tokens=30))
    assert len(found) * BLOCK < num_tokens
    assert len(found) == min(num_cached_tokens // BLOCK, (num_tokens - 1) // BLOCK)


def test_content_is_found_from_the_moment_its_slots_are_allocated() -> None:
    kv = cache()
    admit(kv, sequence("a", 12, shared_tokens=12), num_tokens=5)
    assert len(kv.cached_prefix(sequence("b", 12, shared_tokens=12))) == 1


def test_a_request_that_does_not_read_the_cache_finds_nothing_but_can_be_found() -> None:
    kv = cache()
    admit(kv, sequence("a", 8, shared_tokens=8, reads=False))
    assert kv.cached_prefix(sequence("b", 8, shared_tokens=8, reads=False)) == []
    assert len(kv.cached_prefix(sequence("c", 9, shared_tokens=8))) == 2


def test_found_blocks_are_reported_as_stored_for_requests_with_that_setting() -> None:
    changes: list[CacheChange] = []
    kv = VllmKVCache(config(9, BLOCK, engine="vllm"), changes)
    admit(kv, sequence("a", 10, shared_tokens=10))
    changes.clear()
    quiet = sequence("b", 10, shared_tokens=10)
    kv.cached_prefix(quiet)
    assert changes == []
    request = quiet.request._replace(reports_found_blocks=True)
    kv.cached_prefix(Sequence(request, 0))
    assert changes == [BlocksStored(request, 0, 2)]


def test_a_cache_without_prefix_caching_finds_nothing() -> None:
    kv = cache(enable_prefix_caching=False)
    admit(kv, sequence("a", 8, shared_tokens=8))
    assert kv.cached_prefix(sequence("b", 9, shared_tokens=8)) == []


def test_freed_blocks_that_no_search_can_find_are_reused_before_all_others() -> None:
    kv = cache(total_kv_blocks=6)
    first = sequence("a", 10)
    admit(kv, first)
    assert first.block_ids == [0, 1, 2]
    kv.release(first)
    assert order_of_reuse(kv.pool) == [2, 3, 4, 1, 0], (
        "the half-full one, those never used, the findable ones from the end"
    )


def test_without_prefix_caching_the_blocks_freed_last_are_reused_first() -> None:
    kv = cache(total_kv_blocks=6, enable_prefix_caching=False)
    first = sequence("a", 10)
    admit(kv, first)
    kv.release(first)
    assert order_of_reuse(kv.pool) == [2, 1, 0, 3, 4]


def test_a_duplicate_stays_findable_when_the_first_copy_is_overwritten() -> None:
    kv = cache(total_kv_blocks=3)
    first, second = (sequence(name, 4, shared_tokens=4, reads=False) for name in "ab")
    admit(kv, first)
    admit(kv, second)
    probe = sequence("c", 5, shared_tokens=4)
    assert kv.cached_prefix(probe) == first.block_ids
    kv.release(first)
    admit(kv, sequence("d", 4))
    assert kv.cached_prefix(probe) == second.block_ids


def test_a_block_in_use_is_shared_and_a_free_one_is_taken_back() -> None:
    kv = cache()
    first, second = (sequence(name, 9, shared_tokens=8) for name in "ab")
    admit(kv, first)
    admit(kv, second)
    assert kv.num_used_blocks == 4, "two in common, and one more each"
    kv.release(first)
    kv.release(second)
    assert kv.num_used_blocks == 0
    third = sequence("c", 9, shared_tokens=8)
    found = kv.cached_prefix(third)
    admit(kv, third)
    assert third.block_ids[:2] == found
    assert not set(found) & set(order_of_reuse(kv.pool))


def test_found_blocks_that_are_free_count_against_the_free_ones() -> None:
    kv = cache(total_kv_blocks=5)
    first = sequence("a", 12, shared_tokens=8)
    admit(kv, first)
    kv.release(first)
    admit(kv, sequence("other", 4))
    assert not admit(kv, sequence("b", 16, shared_tokens=8)), "two found and two new ones, but only three are free"


def test_the_whole_prompt_must_fit_when_required() -> None:
    kv = cache(total_kv_blocks=5)
    admit(kv, sequence("other", 8))
    long = sequence("a", 12)
    assert not admit(kv, long, num_tokens=4, whole=True)
    assert admit(kv, long, num_tokens=4)


def test_the_watermark_stays_free_while_others_run() -> None:
    kv = cache(total_kv_blocks=9, watermark_fraction=0.5)
    assert not admit(kv, sequence("a", 20), others=True)
    assert admit(kv, sequence("a", 20), others=False)


def test_a_request_never_holds_more_blocks_than_the_longest_one_needs() -> None:
    kv = cache(max_model_len=6)
    longest = sequence("a", 5)
    admit(kv, longest)
    longest.num_output_tokens = 1
    assert kv.allocate(longest, 8)
    assert len(longest.block_ids) == 2


def test_a_lookup_is_counted_once_per_request() -> None:
    kv = cache()
    admit(kv, sequence("a", 10, shared_tokens=8))
    again = sequence("b", 10, shared_tokens=8)
    kv.count_lookup(again, 2)
    again.num_preemptions = 1
    kv.count_lookup(again, 2)
    assert (kv.queried_tokens, kv.hit_tokens) == (10, 8)


class AnyUse(RuleBasedStateMachine):
    """Requests of all kinds come, grow and go."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.kv = cache(total_kv_blocks=9, watermark_fraction=0.2)
        self.holders: list[Sequence] = []
        self.num_requests = 0

    @rule(
        target=held,
        num_tokens=st.integers(1, 30),
        chunk=st.integers(0, 12),
        group=st.sampled_from("gh"),
        shared_tokens=st.sampled_from([0, 4, 8, 30]),
        reads=st.booleans(),
        whole=st.booleans(),
    )
    def come(self, num_tokens: int, chunk: int, group: str, shared_tokens: int, reads: bool, whole: bool) -> Sequence:
        self.num_requests += 1
        newcomer = sequence(f"r{self.num_requests}", num_tokens, group, shared_tokens, reads)
        before = self.state()
        if admit(self.kv, newcomer, chunk, whole, others=bool(self.holders)):
            self.holders.append(newcomer)
            assert len(newcomer.block_ids) == -(-newcomer.num_computed_tokens // BLOCK)
        else:
            assert self.state() == before
            assert newcomer.block_ids == []
        return newcomer

    @rule(grower=held, num_tokens=st.integers(1, 8))
    def grow(self, grower: Sequence, num_tokens: int) -> None:
        if grower not in self.holders or grower.num_tokens == self.kv.num_blocks * BLOCK:
            return
        if grower.num_computed_tokens == grower.num_tokens:
            grower.num_output_tokens += 1
        num_tokens = min(num_tokens, grower.num_tokens - grower.num_computed_tokens)
        before = self.state()
        if self.kv.allocate(grower, num_tokens):
            grower.num_computed_tokens += num_tokens
        else:
            assert self.state() == before

    @rule(goer=consumes(held))
    def go(self, goer: Sequence) -> None:
        if goer in self.holders:
            self.holders.remove(goer)
            self.kv.release(goer)

    def state(self) -> tuple[object, ...]:
        probes = [sequence("probe", 30, group, 30) for group in "gh"]
        return (
            order_of_reuse(self.kv.pool),
            [list(holder.block_ids) for holder in self.holders],
            [self.kv.cached_prefix(probe) for probe in probes],
        )

    @invariant()
    def blocks_are_held_or_free(self) -> None:
        self.kv.check()
        assert self.kv.num_used_blocks == len({block for holder in self.holders for block in holder.block_ids})

    @invariant()
    def blocks_that_cannot_be_found_are_held_once(self) -> None:
        blocks = [block for holder in self.holders for block in holder.block_ids]
        assert all(blocks.count(block) == 1 for block in blocks if not self.kv.index.is_registered(block))


TestAnyUse = pytest.mark.slow(AnyUse.TestCase)
