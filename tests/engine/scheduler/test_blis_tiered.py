"""Steps of an engine whose KV cache has CPU memory behind it. A step takes 1000 us, a block from the tier 300."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.blis_cache import TieredKVCache
from blis_sim.engine.offloading import CpuTierConfig
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.sequence import Outcome
from tests.fakes import TestLatency, config, request, run

TIER = CpuTierConfig(100, bandwidth_tokens_per_us=4.0, base_latency_us=299)


def shared(name: str, num_tokens: int = 16, output_tokens: int = 1) -> Request:
    return request(name, num_tokens, output_tokens, blocks=PrefixGroupBlocks(name, "g", 4))


def engine(total_kv_blocks: int, tier: CpuTierConfig | None = TIER, reports_steps: bool = True) -> Engine:
    return Engine(config(total_kv_blocks, cpu_tier=tier), TestLatency(), reports_steps)


def durations(each: Engine) -> list[int]:
    return [each.steps.end(index) - each.steps.start(index) for index in range(len(each.steps))]


ARRIVALS = [(0, shared("a", 17)), (5_000, request("b", 40, 1)), (10_000, shared("c", 20))]
"""The prefix of `a` is pushed out by `b`, and `c` begins with it."""


@pytest.mark.parametrize("reports_steps", [True, False])
def test_blocks_pushed_out_of_the_gpu_come_back_from_the_tier_and_make_the_step_longer(reports_steps: bool) -> None:
    tiered = engine(10, reports_steps=reports_steps)
    run(tiered, ARRIVALS)
    assert durations(tiered) == [1000, 1000, 1000 + 4 * 300]
    assert tiered.stats.prefix_hit_tokens == 16


def test_blocks_pushed_out_of_the_gpu_are_computed_again_without_a_tier() -> None:
    plain = engine(10, None)
    run(plain, ARRIVALS)
    assert durations(plain) == [1000, 1000, 1000]
    assert plain.stats.prefix_hit_tokens == 0


def test_blocks_still_on_the_gpu_are_not_fetched() -> None:
    tiered = engine(100)
    run(tiered, ARRIVALS)
    assert durations(tiered) == [1000, 1000, 1000]
    assert tiered.stats.prefix_hit_tokens == 16


def test_blocks_that_come_back_are_computed_all_the_same() -> None:
    tiered = engine(10)
    run(tiered, ARRIVALS)
    assert tiered.last_shape.prefill_tokens == 20


def test_a_tier_smaller_than_what_runs_thrashes() -> None:
    tiered = engine(10, CpuTierConfig(2))
    run(tiered, [(0, request("a", 16, 4))])
    assert isinstance(tiered.kv, TieredKVCache)
    assert tiered.kv.tier.num_stored == 4 * 4
    assert tiered.kv.thrashing_rate == (16 - 2) / 16


def test_requests_whose_fetched_blocks_leave_them_too_few_end_all_the_same() -> None:
    """Both hold blocks of their prefix before they compute them, outgrow the cache and preempt themselves."""
    limits = config(9, long_prefill_token_threshold=2, cpu_tier=CpuTierConfig(16))
    tiered = Engine(limits, TestLatency())
    run(tiered, [(0, shared("a", 19, 10)), (0, shared("b", 16, 10))], 2_000_000)
    assert tiered.counters.ended[Outcome.COMPLETED] == 2


def test_vllm_scheduling_has_no_tier() -> None:
    with pytest.raises(EngineError, match="needs engine blis, got vllm"):
        config(cpu_tier=TIER, engine="vllm")


def test_an_absurd_transfer_time_is_refused() -> None:
    with pytest.raises(EngineError, match="would take 4e"):
        config(cpu_tier=CpuTierConfig(1, bandwidth_tokens_per_us=1e-300))
