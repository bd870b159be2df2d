"""Arrivals that come to their instances many at once end as those that are admitted and routed one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.routing import ROUTERS
from blis_sim.engine.cluster.settings import Latencies
from blis_sim.engine.events import Event
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from tests.examples import examples
from tests.laws.cluster_workloads import ClusterWorkload, cluster_workloads
from tests.laws.test_cluster_laws import run_out
from tests.laws.test_engine_laws import reported


@st.composite
def clusters_of_free_passage(draw: st.DrawFn) -> ClusterWorkload:
    """Clusters that admit every request at once, whatever their routers read, with faults and hang-ups."""
    return replace(
        draw(cluster_workloads()),
        num_instances=draw(st.sampled_from([2, 4])),
        admission="always-admit",
        router=draw(st.sampled_from(["weighted", *ROUTERS])),
        latencies=Latencies(),
    )


def with_everything_ahead(given_: ClusterWorkload, cluster: Cluster) -> Cluster:
    for at, request_id in given_.workload.hang_ups:
        cluster.abort(request_id, at)
    for fault in given_.faults:
        given_.apply(fault, cluster)
    return cluster


def one_by_one(given_: ClusterWorkload) -> Cluster:
    cluster = given_.cluster()

    def place(sequence: Sequence, number: int, at: Micros) -> None:
        cluster.enter(sequence, number, at)

    cluster.place = place
    assert not cluster.dispatches_in_batches
    for at, request in given_.workload.arrivals:
        cluster.submit(request, at)
    return with_everything_ahead(given_, cluster)


def many_at_once(given_: ClusterWorkload) -> Cluster:
    cluster = given_.cluster()
    assert cluster.dispatches_in_batches
    arrivals = sorted(given_.workload.arrivals, key=lambda arrival: arrival[0])
    cluster.submit_all([request for _, request in arrivals], [at for at, _ in arrivals])
    return with_everything_ahead(given_, cluster)


@pytest.mark.slow
@given(clusters_of_free_passage())
@settings(max_examples=examples(100))
def test_arrivals_let_in_together_come_to_the_same_end(given_: ClusterWorkload) -> None:
    expected, found = one_by_one(given_), many_at_once(given_)
    events: list[Event] = run_out(expected)
    assert reported(run_out(found)) == reported(events)
    assert found.clock == expected.clock
    assert found.counters == expected.counters
    assert [each.counters for each in found.instances] == [each.counters for each in expected.instances]
