"""CPU memory for the contents of blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.blis_cache import THRASHING_WINDOW_US, CpuTier
from blis_sim.engine.offloading import CpuTierConfig


def test_fetched_blocks_stay_and_count_as_used() -> None:
    tier = CpuTier(2)
    tier.keep("ab", 0)
    tier.fetch("a", 0)
    tier.keep("c", 0)
    assert ["a" in tier, "b" in tier] == [True, False]
    assert tier.num_fetched == 1


@pytest.mark.parametrize(("after_us", "thrashed"), [(0, 1), (THRASHING_WINDOW_US, 1), (THRASHING_WINDOW_US + 1, 0)])
def test_blocks_that_return_within_a_millisecond_thrashed(after_us: int, thrashed: int) -> None:
    tier = CpuTier(1)
    tier.keep("a", 5)
    tier.fetch("a", 5 + after_us)
    assert tier.num_thrashed == thrashed


def test_keeping_again_does_not_make_a_block_young() -> None:
    tier = CpuTier(1)
    tier.keep("a", 0)
    tier.keep("a", 5000)
    tier.fetch("a", 5001)
    assert tier.num_thrashed == 0


@given(st.integers(1, 5), st.lists(st.integers(0, 9)))
def test_the_tier_holds_the_latest_different_blocks(num_blocks: int, kept: list[int]) -> None:
    tier = CpuTier(num_blocks)
    tier.keep(kept, 0)
    latest = list(dict.fromkeys(reversed(kept)))[:num_blocks]
    assert [identity for identity in range(10) if identity in tier] == sorted(latest)
    assert len(tier) == tier.num_stored - tier.num_evicted


@pytest.mark.parametrize(
    ("bandwidth", "base_us", "time_us"), [(100.0, 0, 1), (100.0, 50, 51), (16.0, 0, 1), (15.0, 0, 2), (0.5, 7, 39)]
)
def test_a_block_takes_the_base_latency_and_its_tokens_at_the_bandwidth_rounded_up(
    bandwidth: float, base_us: int, time_us: int
) -> None:
    assert CpuTierConfig(1, bandwidth_tokens_per_us=bandwidth, base_latency_us=base_us).transfer_us(16) == time_us


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"base_latency_us": -1}, "base_latency_us must be at least 0, got -1"),
        ({"bandwidth_tokens_per_us": 0.0}, "bandwidth_tokens_per_us must be above 0, got 0.0"),
        ({"bandwidth_tokens_per_us": float("nan")}, "bandwidth_tokens_per_us must be above 0, got nan"),
        ({"offload_threshold": 1.5}, "offload_threshold must be at least 0 and at most 1, got 1.5"),
    ],
)
def test_a_tier_out_of_bounds_is_refused(settings: dict[str, float], error: str) -> None:
    with pytest.raises(EngineError) as caught:
        CpuTierConfig(**{"num_blocks": 1, **settings})  # type: ignore[arg-type]
    assert str(caught.value) == error
