"""The mirror in CPU memory equals BLIS's, as written token by token in `literal_tiers.py`."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.kv_cache.blis_cache import OFFLOAD_POLICIES, TieredKVCache
from blis_sim.engine.offloading import CpuTierConfig
from blis_sim.engine.scheduler.blis import TieredBlisScheduler
from tests.engine.kv_cache.literal_tiers import LiteralTiers
from tests.examples import examples
from tests.laws.test_engine_laws import reported
from tests.strategies import Workload, workloads

MANY_STEPS = 3_000

tiers = st.builds(
    CpuTierConfig,
    num_blocks=st.integers(1, 60),
    bandwidth_tokens_per_us=st.sampled_from([0.003, 0.5, 100.0]),
    base_latency_us=st.sampled_from([0, 50, 500]),
)


def outcome(
    workload: Workload, tier: CpuTierConfig, is_literal: bool = False
) -> tuple[list[tuple[object, ...]], Any, Engine]:
    engine = Engine(workload.config(cpu_tier=tier), workload.latency)
    if is_literal:  # a compiled scheduler takes no cache that is not compiled
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(OFFLOAD_POLICIES, "mirror", LiteralTiers)
            engine._scheduler = TieredBlisScheduler(engine._context, True, tier)
    for at, request in workload.arrivals:
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    events = []
    while (due_at := engine.next_event_at()) is not None:
        assume(len(engine.steps) < MANY_STEPS)
        events += engine.advance(due_at + 10_000)
        engine.check_integrity()
    return reported(events), engine.kv, engine


@pytest.mark.slow
@given(workloads(schedulings=("blis",)), tiers)
@settings(max_examples=examples(200))
def test_the_mirror_equals_that_of_blis(workload: Workload, tier: CpuTierConfig) -> None:
    expected_events, expected, theirs = outcome(workload, tier, is_literal=True)
    events, kv, ours = outcome(workload, tier)
    assert isinstance(kv, TieredKVCache)
    assert events == expected_events
    assert ours.stats == theirs.stats
    assert (kv.tier.num_stored, kv.tier.num_evicted) == (expected.num_stored, expected.num_evicted)
    assert (kv.tier.num_fetched, kv.num_misses_in_tier) == (expected.num_fetched, expected.num_cpu_misses)
