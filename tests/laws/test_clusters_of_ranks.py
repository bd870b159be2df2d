"""Laws of clusters whose instances have data-parallel ranks, in lockstep or independent."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionSettings
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.routing import RoundRobin
from blis_sim.engine.data_parallel import RankGroup, new_ranks
from blis_sim.engine.events import Finished
from tests.examples import examples
from tests.laws.cluster_workloads import ClusterWorkload, cluster_workloads
from tests.laws.test_cluster_laws import drained, in_pieces, run_out
from tests.laws.test_engine_laws import happens_in_order, reported
from tests.strategies import Workload, workloads

pytestmark = pytest.mark.slow
CLUSTERS = cluster_workloads(has_ranks=True, schedulings=("vllm",))


def ranks_of(workload: Workload, num_ranks: int, shares_experts: bool) -> RankGroup:
    return new_ranks(workload.config(), workload.latency, num_ranks, shares_experts=shares_experts)


@given(workloads(schedulings=("vllm",)), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(100))
def test_a_cluster_of_one_group_that_decides_nothing_is_the_group(
    workload: Workload, num_ranks: int, shares_experts: bool
) -> None:
    alone = ranks_of(workload, num_ranks, shares_experts)
    admission = ADMISSIONS["always-admit"](AdmissionSettings())
    door = Cluster([ranks_of(workload, num_ranks, shares_experts)], admission, RoundRobin())
    simulations: tuple[RankGroup, Cluster] = (alone, door)
    for simulation in simulations:
        for at, request in workload.arrivals:
            simulation.submit(request, at)
        for at, request_id in workload.hang_ups:
            simulation.abort(request_id, at)
    assert reported(run_out(door)) == reported(run_out(alone))
    assert door.clock == alone.clock
    assert [engine.counters for engine in door.instances] == [engine.counters for engine in alone.instances]
    assert [engine.steps.durations().tolist() for engine in door.instances] == [
        engine.steps.durations().tolist() for engine in alone.instances
    ]


@given(cluster_workloads(schedulings=("vllm",)))
@settings(max_examples=examples(100))
def test_instances_of_one_independent_rank_are_instances_without_ranks(given_: ClusterWorkload) -> None:
    engines, events = drained(given_)
    groups, same_events = drained(replace(given_, num_ranks=1))
    assert reported(same_events) == reported(events)
    assert groups.counters == engines.counters
    assert [engine.counters for engine in groups.instances] == [engine.counters for engine in engines.instances]


@given(CLUSTERS, st.lists(st.integers(1, 8), min_size=1, max_size=8))
@settings(max_examples=examples(200))
def test_every_request_ends_once_and_in_order_however_often_and_late_the_driver_wakes(
    given_: ClusterWorkload, pauses: list[int]
) -> None:
    cluster, events = drained(given_)
    ended = sorted(event.sequence.request.id for event in events if isinstance(event, Finished))
    assert ended == sorted(request.id for _, request in given_.workload.arrivals)
    happens_in_order(events)
    on_instances = sum(member.engine.num_ended for member in cluster.members.values())
    assert on_instances + cluster.counters.num_ended == len(given_.workload.arrivals)
    for member in cluster.members.values():
        assert not member.engine.live
        assert member.engine.stats.kv_blocks_used == 0
    for engine in cluster.instances:
        engine.check_integrity()
    assert reported(in_pieces(given_, pauses)) == reported(events)
