"""Requests that wait with blocks for a transferred prompt, which requests ahead of them need to go on."""

from typing import Any

import pytest

from blis_sim.engine.cluster.build import notes_after_run
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation.handover import Disaggregation
from blis_sim.engine.cluster.disaggregation.pools import Pools
from blis_sim.engine.cluster.disaggregation.settings import DisaggregationSettings
from blis_sim.engine.events import Finished
from tests.engine.cluster.clusters import cluster
from tests.fakes import request

MOST_EVENTS = 20_000
"""Far more instants than any of these runs has, so a livelock fails a test instead of keeping it busy."""


def outcomes_of(simulated: Cluster, num_requests: int, input_tokens: int, output_tokens: int) -> list[str]:
    """How requests that arrive almost at once end, if all of them do."""
    for number in range(num_requests):
        simulated.submit(request(f"r{number}", input_tokens, output_tokens), number * 10)
    ended: list[str] = []
    for _ in range(MOST_EVENTS):
        due_at = simulated.next_event_at()
        if due_at is None:
            break
        ended += [event.outcome.value for event in simulated.advance(due_at) if isinstance(event, Finished)]
    for engine in simulated.instances:
        engine.check_integrity()
        assert engine.stats.kv_blocks_used == 0
    return ended


def both_roles(num_instances: int = 1, **settings: Any) -> Cluster:
    """Instances that compute prompts and answers, by BLIS's rules; all prompts are computed apart."""
    simulated = cluster(num_instances, **settings)
    pools = DisaggregationSettings(pools=Pools(num_instances, num_both=num_instances), decider="always")
    Disaggregation(simulated, pools, bytes_per_block=0.0)
    return simulated


@pytest.mark.parametrize("output_tokens", [1, 10, 40])
@pytest.mark.parametrize("max_num_batched_tokens", [2048, 64])
@pytest.mark.parametrize("preemption_policy", ["fcfs", "priority"])
def test_a_prompt_that_waits_for_blocks_of_waiting_requests_gets_them(
    output_tokens: int, max_num_batched_tokens: int, preemption_policy: str
) -> None:
    simulated = both_roles(
        total_kv_blocks=126, max_num_batched_tokens=max_num_batched_tokens, preemption_policy=preemption_policy
    )
    assert outcomes_of(simulated, 14, 100, output_tokens) == ["completed"] * 14
    (engine,) = simulated.instances
    assert engine.counters.num_reservations_evicted > 0


@pytest.mark.parametrize("output_tokens", [0, 1])
def test_a_prompt_that_fills_the_cache_is_computed_where_it_is_answered(output_tokens: int) -> None:
    simulated = both_roles(2, total_kv_blocks=25)
    assert outcomes_of(simulated, 1, 100, output_tokens) == ["completed"]


def test_a_run_says_in_one_line_that_reservations_were_evicted() -> None:
    simulated = both_roles(total_kv_blocks=126)
    outcomes_of(simulated, 14, 100, 10)
    (note,) = notes_after_run(simulated)
    assert note.startswith("warning: requests lost the KV blocks of their transferred prompts ")


def test_a_run_with_enough_blocks_evicts_no_reservation() -> None:
    simulated = both_roles(total_kv_blocks=1000)
    outcomes_of(simulated, 14, 100, 10)
    assert list(notes_after_run(simulated)) == []
