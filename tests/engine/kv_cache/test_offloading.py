"""Free blocks that move to CPU memory under pressure and come back on demand."""

from blis_sim.engine.kv_cache.blis_cache import OffloadingKVCache
from blis_sim.engine.offloading import CpuTierConfig
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.sequence import Sequence
from tests.fakes import request

SIZE = 4


def cache(num_blocks: int = 10, threshold: float = 0.5, cpu_blocks: int = 100) -> OffloadingKVCache:
    return OffloadingKVCache(num_blocks, SIZE, CpuTierConfig(cpu_blocks, offload_threshold=threshold))


def sequence(name: str, num_blocks: int, shared_blocks: int = 0) -> Sequence:
    return Sequence(request(name, num_blocks * SIZE, blocks=PrefixGroupBlocks(name, "g", shared_blocks)), 0)


def filled(kv: OffloadingKVCache, each: Sequence) -> Sequence:
    """The sequence running with its whole prompt in the cache."""
    assert kv.allocate_prompt(each, each.request.input_tokens)
    each.running = True
    each.num_computed_tokens = each.request.input_tokens
    return each


def test_blocks_released_under_pressure_move_to_the_tier() -> None:
    kv = cache()
    filled(kv, sequence("busy", 6))
    gone = filled(kv, sequence("gone", 3))
    kv.release(gone)
    assert (len(kv.tier), kv.cached_prefix(gone)) == (3, [])


def test_blocks_released_without_pressure_stay_findable() -> None:
    kv = cache()
    filled(kv, sequence("busy", 5))
    gone = filled(kv, sequence("gone", 3))
    kv.release(gone)
    assert (len(kv.tier), len(kv.cached_prefix(gone))) == (0, 3)


def test_blocks_that_others_still_hold_stay() -> None:
    kv = cache()
    filled(kv, sequence("busy", 6, shared_blocks=2))
    gone = sequence("gone", 3, shared_blocks=2)
    assert kv.allocate_prompt(gone, SIZE, kv.cached_prefix(gone))
    kv.release(gone)
    assert (len(kv.tier), len(kv.cached_prefix(gone))) == (1, 2)


def test_when_the_pressure_begins_all_that_is_free_and_findable_moves() -> None:
    kv = cache()
    gone = filled(kv, sequence("gone", 3))
    kv.release(gone)
    busy = filled(kv, sequence("busy", 6))
    kv.step_executed([busy])
    assert (len(kv.tier), kv.cached_prefix(gone)) == (3, [])


def test_a_block_whose_content_another_holds_too_does_not_take_that_along() -> None:
    kv = cache()
    gone, twin = sequence("gone", 2, shared_blocks=2), sequence("twin", 2, shared_blocks=2)
    filled(kv, gone)
    filled(kv, twin)
    filled(kv, sequence("busy", 6))
    kv.release(gone)
    assert (len(kv.tier), kv.cached_prefix(gone)) == (0, twin.block_ids)


def test_a_failed_allocation_brings_the_prompt_back_for_the_next_attempt() -> None:
    kv = cache()
    filled(kv, sequence("busy", 6))
    again = filled(kv, sequence("again", 2))
    kv.evict(again)
    again.restart()
    last = filled(kv, sequence("last", 1))
    assert not kv.allocate_prompt(again, 4 * SIZE)  # more than there is
    assert (len(kv.tier), len(kv.cached_prefix(again)), kv.take_transfer_us()) == (0, 2, 2)
    assert kv.num_misses_in_tier == 0
    kv.release(last)


def test_an_allocation_that_succeeds_fetches_nothing() -> None:
    kv = cache()
    filled(kv, sequence("busy", 6))
    again = filled(kv, sequence("again", 2))
    kv.evict(again)
    again.restart()
    filled(kv, again)
    assert (kv.num_missed_blocks, len(kv.tier), kv.take_transfer_us()) == (10, 2, 0)


def test_a_failure_that_finds_nothing_counts_against_the_hit_rate() -> None:
    kv = cache(2)
    busy = filled(kv, sequence("busy", 2))
    queried = kv.queried_tokens
    assert not kv.allocate_token(busy)
    assert kv.queried_tokens == queried + SIZE


def test_the_thrashing_rate_is_the_share_that_came_straight_back() -> None:
    kv = cache()
    assert kv.thrashing_rate == 0
    filled(kv, sequence("busy", 6))
    gone = filled(kv, sequence("gone", 4))
    kv.release(gone)
    kv.now = 900
    gone.running = False
    assert not kv.allocate_prompt(gone, 5 * SIZE)
    assert (kv.tier.num_thrashed, kv.thrashing_rate) == (4, 1.0)
