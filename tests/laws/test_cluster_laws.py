"""Invariants of every cluster, whichever instance is killed, drained or added meanwhile."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionSettings
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.routing import RoundRobin
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Outcome
from blis_sim.engine.simulation import Simulation
from tests.examples import examples
from tests.laws.cluster_workloads import ClusterWorkload, Fault, cluster_workloads
from tests.laws.test_engine_laws import LONG_ENOUGH_US, MANY_STEPS, happens_in_order, reported
from tests.strategies import GRID_US, Workload, workloads


def run_out(simulation: Simulation) -> list[Event]:
    """All events until the cluster is idle; runs that never end are discarded."""
    events: list[Event] = []
    while (due_at := simulation.next_event_at()) is not None:
        assume(due_at < LONG_ENOUGH_US and sum(len(engine.steps) for engine in simulation.instances) < MANY_STEPS)
        events.extend(simulation.advance(due_at))
    return events


def drained(given_: ClusterWorkload, reports_steps: bool = True) -> tuple[Cluster, list[Event]]:
    """A cluster that got everything beforehand, at its end, and all events."""
    cluster = given_.cluster(reports_steps)
    for at, request in given_.workload.arrivals:
        cluster.submit(request, at)
    for at, request_id in given_.workload.hang_ups:
        cluster.abort(request_id, at)
    for fault in given_.faults:
        given_.apply(fault, cluster, reports_steps)
    return cluster, run_out(cluster)


def in_pieces(given_: ClusterWorkload, pauses: list[int]) -> list[Event]:
    """All events of a cluster that gets everything only shortly before, and is advanced by these half grid steps."""
    cluster = given_.cluster()
    todo: list[tuple[int, int, Request | str | Fault]] = [(at, 0, each) for at, each in given_.workload.arrivals]
    todo += [(at, 1, request_id) for at, request_id in given_.workload.hang_ups]
    todo += [(fault.at, 2, fault) for fault in given_.faults]
    todo.sort(key=lambda entry: entry[:2])
    events: list[Event] = []
    now, turn = -1, 0
    while todo or cluster.next_event_at() is not None:
        until = now + pauses[turn % len(pauses)] * GRID_US // 2
        turn += 1
        while todo and todo[0][0] <= until:
            at, _, what = todo.pop(0)
            if isinstance(what, Request):
                cluster.submit(what, at)
            elif isinstance(what, Fault):
                given_.apply(what, cluster)
            else:
                cluster.abort(what, at)
        events.extend(cluster.advance(until))
        now = until
    return events


def endings(events: list[Event]) -> list[tuple[object, ...]]:
    """Endings of requests, which fast steps report as well."""
    return [
        (each.at, each.sequence.request.id, each.outcome, each.sequence.instance, each.sequence.num_output_tokens)
        for each in events
        if isinstance(each, Finished)
    ]


def ends_every_request_once(given_: ClusterWorkload, cluster: Cluster, events: list[Event]) -> None:
    """INV-1: nothing is lost and nothing counted twice, on the instances and in front of them."""
    ended = sorted(event.sequence.request.id for event in events if isinstance(event, Finished))
    assert ended == sorted(request.id for _, request in given_.workload.arrivals)
    on_instances = sum(sum(engine.counters.ended.values()) for engine in cluster.instances)
    assert on_instances + cluster.counters.num_ended == len(given_.workload.arrivals)
    for engine in cluster.instances:
        engine.check_integrity()
        assert engine.stats.kv_blocks_used == 0
        assert not engine.live


def has_causes_before_effects(given_: ClusterWorkload, events: list[Event]) -> None:
    """INV-5: arrival <= schedule < first token <= end, and no request gets a token in less than decisions take."""
    decisions_us = given_.latencies.admission_us + given_.latencies.routing_us
    for event in events:
        if not isinstance(event, Finished):
            continue
        sequence = event.sequence
        assert sequence.arrived_at <= event.at
        if event.outcome in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED):
            assert sequence.scheduled_at is not None
            assert sequence.first_token_at is not None
            assert sequence.arrived_at + decisions_us <= sequence.scheduled_at < sequence.first_token_at <= event.at


def sends_nothing_to_an_instance_that_is_gone(given_: ClusterWorkload, events: list[Event]) -> None:
    gone_at: dict[int, int] = {}
    for fault in given_.faults:
        if fault.kind != "add":
            gone_at.setdefault(fault.instance, fault.at)
    for event in events:
        if isinstance(event, Finished) and event.sequence.instance != NOWHERE:
            sequence = event.sequence
            if sequence.instance < given_.num_instances and sequence.instance in gone_at:
                decisions_us = given_.latencies.admission_us + given_.latencies.routing_us
                assert sequence.arrived_at + decisions_us < gone_at[sequence.instance]


@pytest.mark.slow
@given(cluster_workloads(), st.lists(st.integers(1, 8), min_size=1, max_size=8))
@settings(max_examples=examples(200))
def test_every_run_keeps_the_laws_however_often_and_late_its_driver_wakes(
    given_: ClusterWorkload, pauses: list[int]
) -> None:
    cluster, events = drained(given_)
    ends_every_request_once(given_, cluster, events)
    happens_in_order(events)
    has_causes_before_effects(given_, events)
    sends_nothing_to_an_instance_that_is_gone(given_, events)
    assert reported(in_pieces(given_, pauses)) == reported(events)


@pytest.mark.slow
@given(cluster_workloads(with_speculation=False))
def test_fast_instances_make_the_same_cluster(given_: ClusterWorkload) -> None:
    """Snapshots of routers must not depend on how instances take their steps."""
    plain, fast = drained(given_), drained(given_, reports_steps=False)
    assert endings(fast[1]) == endings(plain[1])
    assert fast[0].counters == plain[0].counters
    assert [engine.counters for engine in fast[0].instances] == [engine.counters for engine in plain[0].instances]
    assert fast[0].clock == plain[0].clock


@pytest.mark.slow
@given(workloads())
def test_a_cluster_of_one_that_decides_nothing_is_its_engine(workload: Workload) -> None:
    alone, door = workload.engine(), one_behind_a_door(workload)
    simulations: tuple[Engine, Cluster] = (alone, door)
    for simulation in simulations:
        for at, request in workload.arrivals:
            simulation.submit(request, at)
        for at, request_id in workload.hang_ups:
            simulation.abort(request_id, at)
    assert reported(run_out(door)) == reported(run_out(alone))
    assert door.clock == alone.clock


def one_behind_a_door(workload: Workload) -> Cluster:
    return Cluster([workload.engine()], ADMISSIONS["always-admit"](AdmissionSettings()), RoundRobin())
