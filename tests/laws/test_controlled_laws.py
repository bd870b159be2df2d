"""Invariants of every cluster with a gateway, with separate pools, or with both, whichever instance is killed
meanwhile."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation import Disaggregation, Role
from blis_sim.engine.cluster.gateway import FlowControl
from blis_sim.engine.events import Event, Finished
from replay.simulation.record import COMPLETED
from tests.examples import examples
from tests.laws.controlled_workloads import ControlledWorkload, controlled_workloads
from tests.laws.test_cluster_laws import drained, endings, in_pieces
from tests.laws.test_engine_laws import happens_in_order, reported


def num_prompts_computed(cluster: Cluster) -> int:
    """Requests of instances that were only the prompts of others and ended as such."""
    disaggregation = cluster.part(Disaggregation)
    if disaggregation is None:
        return 0
    prompts = [each.prompt_part for each in disaggregation.separated]
    return sum(each is not None and each.outcome is not None for each in prompts)


def finished(events: list[Event]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]


def leaves_nothing_behind(cluster: Cluster, events: list[Event], given_: ControlledWorkload) -> None:
    """INV-1 and INV-4, at the gateway, in transfers and on instances."""
    ended = sorted(event.sequence.request.id for event in finished(events))
    assert ended == sorted(request.id for _, request in given_.workload.arrivals)
    on_instances = sum(sum(engine.counters.ended.values()) for engine in cluster.instances)
    assert on_instances - num_prompts_computed(cluster) + cluster.counters.num_ended == len(ended)
    for engine in cluster.instances:
        engine.check_integrity()
        assert engine.stats.kv_blocks_used == 0
        assert not engine.live
    if (gateway := cluster.part(FlowControl)) is not None:
        assert gateway.num_waiting == 0
    if (disaggregation := cluster.part(Disaggregation)) is not None:
        assert disaggregation.num_in_transfer == 0
        assert disaggregation.network.num_active == 0


def dispatches_when_the_gateway_allows_it(given_: ControlledWorkload, events: list[Event]) -> None:
    """INV-5 with a queue: arrival + decisions + wait in the queue <= schedule."""
    decisions_us = given_.latencies.admission_us + given_.latencies.routing_us
    for event in finished(events):
        sequence = event.sequence
        if event.outcome in COMPLETED:
            assert sequence.scheduled_at is not None
            assert sequence.arrived_at + decisions_us + sequence.gateway_wait_us <= sequence.scheduled_at


@pytest.mark.slow
@given(controlled_workloads(), st.lists(st.integers(1, 8), min_size=1, max_size=8))
@settings(max_examples=examples(100))
def test_every_run_keeps_the_laws_however_often_and_late_its_driver_wakes(
    given_: ControlledWorkload, pauses: list[int]
) -> None:
    cluster, events = drained(given_)
    leaves_nothing_behind(cluster, events, given_)
    happens_in_order(events)
    dispatches_when_the_gateway_allows_it(given_, events)
    assert reported(in_pieces(given_, pauses)) == reported(events)


@pytest.mark.slow
@given(controlled_workloads(with_speculation=False))
@settings(max_examples=examples(100))
def test_fast_instances_make_the_same_cluster(given_: ControlledWorkload) -> None:
    plain, fast = drained(given_), drained(given_, reports_steps=False)
    assert endings(fast[1]) == endings(plain[1])
    assert fast[0].counters == plain[0].counters
    assert [engine.counters for engine in fast[0].instances] == [engine.counters for engine in plain[0].instances]
    assert fast[0].clock == plain[0].clock


@pytest.mark.slow
@given(controlled_workloads(with_gateway=True, with_pools=False, with_hang_ups=False))
def test_with_the_concurrency_detector_instances_never_have_more_than_they_may(given_: ControlledWorkload) -> None:
    settings_ = given_.flow_control
    assert settings_ is not None
    if settings_.saturation_detector != "concurrency" or given_.latencies.routing_us or given_.faults:
        return
    # Requests of one instant are dispatched before any of them is routed, and so count as in flight.
    at_once = max(Counter(at for at, _ in given_.workload.arrivals).values())
    most = settings_.saturation.max_in_flight * given_.num_instances + at_once - 1
    changes: list[tuple[int, int]] = []
    for event in finished(drained(given_)[1]):
        sequence = event.sequence
        if sequence.instance >= 0:
            entered_at = sequence.arrived_at + given_.latencies.admission_us + sequence.gateway_wait_us
            changes += [(entered_at, 1), (event.at, -1)]
    # With BLIS's scheduling a place is free when the last step of a request begins, so count none of that time.
    if given_.workload.settings["engine"] == "blis":
        return
    present = 0
    for _, change in sorted(changes):
        present += change
        assert present <= most


@pytest.mark.slow
@given(controlled_workloads(with_gateway=False, with_pools=True))
def test_instances_keep_to_their_role_and_answer_when_the_prompt_has_come(given_: ControlledWorkload) -> None:
    """INV-PD-1 to 5."""
    assert given_.disaggregation is not None
    roles = given_.disaggregation.pools.roles
    cluster, events = drained(given_)
    disaggregation = cluster.part(Disaggregation)
    assert disaggregation is not None
    assert disaggregation.network.num_started == disaggregation.network.num_ended == len(disaggregation.transfer_us)
    for sequence in disaggregation.separated:
        assert sequence.prompt_part is not None
        assert roles[sequence.prompt_part.instance] in (Role.PREFILL, Role.BOTH)
    for event in finished(events):
        sequence = event.sequence
        if sequence.instance >= 0 and event.outcome in COMPLETED:
            assert roles[sequence.instance] in (Role.DECODE, Role.BOTH)
        if sequence.prompt_part is None or event.outcome not in COMPLETED:
            continue
        prompt = sequence.prompt_part
        assert prompt.outcome in COMPLETED
        assert prompt.scheduled_at is not None
        assert sequence.queued_at is not None
        assert sequence.scheduled_at is not None
        assert sequence.arrived_at <= prompt.scheduled_at < sequence.queued_at <= sequence.scheduled_at < event.at
        if given_.workload.settings["engine"] == "vllm":
            assert prompt.first_token_at is not None
            assert prompt.first_token_at < sequence.queued_at
