"""The gateway: its queue, how it measures saturation, and the flow of requests into a cluster."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.cluster.build import build_simulation
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.gateway import (
    DISPATCH_ORDERS,
    FAIRNESS,
    NO_DEADLINE,
    SATURATION_DETECTORS,
    EnqueueResult,
    FlowControl,
    FlowControlSettings,
    GatewayQueue,
    GatewayUrgency,
    QueuedRequest,
    QueueLimits,
    Refusal,
    SaturationLimits,
)
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.settings import Freshness
from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.deployment import resolve
from blis_sim.engine.events import Finished
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES, SLO_CLASS_PRIORITIES, SloPriorities, UrgencySettings
from blis_sim.options import options_from
from tests.engine.cluster.clusters import cluster, endings
from tests.fakes import config, request

CRITICAL, STANDARD, BATCH, SHEDDABLE = 4, 3, -1, -2


def queue(order: str = "priority", fairness: str = "global-strict", limits: QueueLimits | None = None) -> GatewayQueue:
    return GatewayQueue(limits or QueueLimits(), DISPATCH_ORDERS[order], FAIRNESS[fairness])


def enter(
    waiting_line: GatewayQueue,
    name: str,
    importance: int = STANDARD,
    tenant: str = "",
    at: int = 0,
    due_at: int = NO_DEADLINE,
) -> EnqueueResult:
    return waiting_line.enter(Sequence(request(name), at), importance, tenant, at, due_at)


def drain(waiting_line: GatewayQueue, saturation: float = 0.0) -> list[str]:
    """Dispatch as long as possible. Returns the ids of the dispatched requests in order."""
    left = []
    while (waiting := waiting_line.dispatch(saturation)) is not None:
        left.append(waiting.sequence.request.id)
    return left


def test_more_important_classes_go_first_and_within_a_class_earlier_requests() -> None:
    for order in ("fifo", "priority"):
        line = queue(order)
        for name, importance in (("b1", BATCH), ("s1", STANDARD), ("c1", CRITICAL), ("s2", STANDARD), ("c2", CRITICAL)):
            enter(line, name, importance)
        assert drain(line) == ["c1", "c2", "s1", "s2", "b1"]


def test_global_fifo_ignores_classes() -> None:
    line = queue("global-fifo")
    for name, importance in (("b", BATCH), ("s", STANDARD), ("c", CRITICAL)):
        enter(line, name, importance)
    assert drain(line) == ["b", "s", "c"]


def test_slo_deadline_order_dispatches_the_earliest_deadline_of_a_class_first_and_requests_without_a_target_last() -> (
    None
):
    line = queue("slo-deadline")
    enter(line, "none", STANDARD)
    enter(line, "late", STANDARD, tenant="x", due_at=500)
    enter(line, "soon", STANDARD, tenant="y", due_at=100)
    enter(line, "critical", CRITICAL)
    assert drain(line) == ["critical", "soon", "late", "none"]


def test_tenants_take_turns_in_the_order_of_their_names() -> None:
    line = queue(fairness="round-robin")
    for name, tenant in (("b1", "b"), ("b2", "b"), ("b3", "b"), ("a1", "a"), ("c1", "c"), ("a2", "a")):
        enter(line, name, tenant=tenant)
    assert drain(line) == ["a1", "b1", "c1", "a2", "b2", "b3"]


def test_a_saturated_cluster_gets_no_request() -> None:
    line = queue()
    enter(line, "a")
    assert drain(line, saturation=1.0) == []
    assert drain(line, saturation=0.99) == ["a"]


def test_less_important_classes_are_held_back_at_lower_saturation() -> None:
    line = queue(limits=QueueLimits(usage_limit=0.5))
    for name, importance in (("c", CRITICAL), ("s", STANDARD), ("b", BATCH)):
        enter(line, name, importance)
    # Ceilings are 1, 0.75 and 0.5.
    assert drain(line, saturation=0.8) == ["c"]
    assert drain(line, saturation=0.5) == ["s"]
    assert drain(line, saturation=0.49) == ["b"]


def test_empty_bands_still_lower_the_ceilings() -> None:
    line = queue(limits=QueueLimits(usage_limit=0.5))
    enter(line, "c", CRITICAL)
    assert drain(line) == ["c"]
    enter(line, "s", STANDARD)
    assert drain(line, saturation=0.5) == []


def test_a_full_band_refuses_requests_and_other_bands_do_not() -> None:
    line = queue(limits=QueueLimits(max_waiting_per_band=1))
    assert enter(line, "s1", STANDARD).refusal is None
    assert enter(line, "s2", STANDARD).refusal is Refusal.BAND_FULL
    assert enter(line, "c1", CRITICAL).refusal is None
    assert drain(line) == ["c1", "s1"]


def test_a_full_queue_refuses_every_request() -> None:
    line = queue(limits=QueueLimits(max_waiting=1))
    enter(line, "b", BATCH)
    assert enter(line, "c", CRITICAL).refusal is Refusal.QUEUE_FULL
    assert drain(line) == ["b"]


def test_shedding_drops_the_latest_of_the_least_important_requests_for_a_more_important_one() -> None:
    line = queue(limits=QueueLimits(max_waiting=4, sheds=True))
    for name, importance in (("b1", BATCH), ("x1", SHEDDABLE), ("x2", SHEDDABLE), ("s1", STANDARD)):
        enter(line, name, importance)
    shed = [enter(line, f"c{i}", CRITICAL).shed for i in range(3)]
    assert [each.sequence.request.id for each in shed if each is not None] == ["x2", "x1", "b1"]
    assert enter(line, "c3", CRITICAL).refusal is Refusal.QUEUE_FULL
    assert drain(line) == ["c0", "c1", "c2", "s1"]


def test_no_request_is_shed_for_one_of_equal_importance() -> None:
    line = queue(limits=QueueLimits(max_waiting=1, sheds=True))
    enter(line, "b1", BATCH)
    entry = enter(line, "b2", BATCH)
    assert (entry.refusal, entry.shed) == (Refusal.QUEUE_FULL, None)


def test_a_request_that_has_left_is_never_dispatched() -> None:
    line = queue()
    gone = enter(line, "gone").waiting
    enter(line, "stays")
    assert gone is not None
    line.leave(gone)
    assert (line.num_waiting, line.num_unsheddable) == (1, 1)
    assert drain(line) == ["stays"]


_coin = st.booleans()
_arrivals = st.lists(st.tuples(st.sampled_from([4, 3, -1, -2, -3]), st.sampled_from("abc"), st.integers(0, 20)))


@given(
    _arrivals,
    st.sampled_from(sorted(DISPATCH_ORDERS)),
    st.sampled_from(sorted(FAIRNESS)),
    st.integers(0, 4),
    st.integers(0, 4),
    st.booleans(),
    st.data(),
)
def test_every_request_leaves_once_or_is_refused(
    arrivals: list[tuple[int, str, int]],
    order: str,
    fairness: str,
    max_waiting: int,
    max_per_band: int,
    sheds: bool,
    data: st.DataObject,
) -> None:
    line = queue(order, fairness, QueueLimits(max_waiting, max_per_band, sheds))
    ended: list[str] = []
    present: list[QueuedRequest] = []
    for place, (importance, tenant, due_at) in enumerate(arrivals):
        entry = enter(line, f"r{place}", importance, tenant, place, due_at)
        if entry.shed is not None:
            ended.append(entry.shed.sequence.request.id)
        if entry.waiting is None:
            ended.append(f"r{place}")
        else:
            present.append(entry.waiting)
        present = [waiting for waiting in present if not waiting.has_left]
        leaves = data.draw(_coin)
        if leaves and present:
            leaving = data.draw(st.sampled_from(present))
            line.leave(leaving)
            ended.append(leaving.sequence.request.id)
        elif data.draw(_coin) and (dispatched := line.dispatch(0.0)) is not None:
            ended.append(dispatched.sequence.request.id)
        assert not max_waiting or line.num_waiting <= max_waiting
        assert len(ended) + line.num_waiting == place + 1
    assert sorted(ended + drain(line)) == sorted(f"r{place}" for place in range(len(arrivals)))
    assert line.num_waiting == 0
    assert line.num_unsheddable == 0


def state(*loads: tuple[int, float, int]) -> RoutingState:
    """Instances by number of waiting requests, used fraction of the KV cache and number of requests in flight."""
    seen = RoutingState(cluster(len(loads) or 1, max_num_seqs=40).members, Freshness())
    seen.candidates.clear()
    for number, (num_waiting, kv_usage_fraction, num_in_flight) in enumerate(loads):
        snapshot = Snapshot(number)
        snapshot.num_waiting, snapshot.kv_usage_fraction = num_waiting, kv_usage_fraction
        snapshot.num_in_flight = num_in_flight
        seen.candidates.append(snapshot)
    return seen


def test_each_detector_measures_against_its_limits() -> None:
    seen, limits = state((5, 0.2, 10), (0, 0.4, 30)), SaturationLimits()
    saturation = {name: detector.saturation(seen, limits) for name, detector in SATURATION_DETECTORS.items()}
    assert saturation == {"never": 0.0, "utilization": pytest.approx(0.75), "concurrency": 0.2, "places": 0.25}


def test_without_instances_saturation_is_1() -> None:
    for name in ("utilization", "concurrency", "places"):
        assert SATURATION_DETECTORS[name].saturation(state(), SaturationLimits()) == 1.0


def controlled(priorities: SloPriorities = DEFAULT_SLO_PRIORITIES, **settings: object) -> tuple[Cluster, FlowControl]:
    """One instance that serves one request at a time, with a step of 1000 us per token, behind a gateway."""
    simulated = cluster(max_num_seqs=1)
    given = {
        "saturation_detector": "concurrency",
        "saturation": SaturationLimits(max_in_flight=1),
        "tick_interval_us": 1000,
    }
    gateway = FlowControl(simulated, FlowControlSettings(**(given | settings)), priorities=priorities)  # type: ignore[arg-type]
    return simulated, gateway


def named(name: str, slo_class: str = "", output_tokens: int = 3) -> Request:
    return request(name, output_tokens=output_tokens, slo_class=slo_class)


def test_ticks_count_from_the_instant_at_which_a_request_began_to_wait() -> None:
    simulated, gateway = controlled(tick_interval_us=700)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    # The place is free at 2000, when the last step of `a` begins; ticks are at 800, 1500, 2200.
    assert ended == {"a": (3000, "completed"), "b": (5200, "completed")}
    assert gateway.counters.num_dispatched == 2


def test_without_ticks_a_request_is_dispatched_whenever_one_ends() -> None:
    simulated, _ = controlled(tick_interval_us=0)
    ended = endings(simulated, [(0, named("a")), (100, named("b")), (200, named("c", "critical"))])
    assert sorted(ended, key=lambda name: ended[name]) == ["a", "c", "b"]
    assert ended["c"] == (5001, "completed")


@pytest.mark.parametrize(
    ("priorities", "targets_us", "order"),
    [
        ({}, {}, "acb"),
        ({}, {"critical": 9_000_000, "standard": 1000}, "acb"),
        ({"critical": 3}, {}, "abc"),
        ({"critical": 3}, {"critical": 9_000_000, "standard": 1000}, "abc"),
        ({"critical": 3}, {"critical": 1000, "standard": 9_000_000}, "acb"),
    ],
)
def test_targets_of_classes_decide_between_those_of_equal_importance_only(
    priorities: dict[str, int], targets_us: dict[str, int], order: str
) -> None:
    simulated, _ = controlled(
        SloPriorities({**SLO_CLASS_PRIORITIES, **priorities}),
        dispatch_order="slo-deadline",
        slo_targets_us=targets_us,
        tick_interval_us=0,
    )
    arrivals = [(0, named("a")), (100, named("b", "standard")), (200, named("c", "critical"))]
    ended = endings(simulated, arrivals)
    assert sorted(ended, key=lambda name: ended[name]) == list(order)


def test_a_request_that_waits_too_long_expires() -> None:
    simulated, gateway = controlled(ttl_us=500)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    assert ended["b"] == (600, "rejected")
    assert (gateway.counters.num_expired, gateway.counters.num_dispatched) == (1, 1)


def test_a_full_queue_rejects_or_sheds() -> None:
    simulated, gateway = controlled(queue=QueueLimits(max_waiting=1, sheds=True))
    arrivals = [(0, named("a")), (100, named("b", "batch")), (200, named("c", "critical")), (300, named("d", "batch"))]
    ended = endings(simulated, arrivals)
    assert (ended["b"], ended["d"]) == ((200, "rejected"), (300, "rejected"))
    assert (gateway.counters.num_shed, gateway.counters.num_rejected) == (1, 1)
    assert simulated.counters.num_ended == 2


def test_a_sheddable_request_makes_room_on_its_instance_for_one_that_is_not() -> None:
    simulated, gateway = controlled(evicts_in_flight=True)
    ended = endings(simulated, [(0, named("a", "batch", output_tokens=50)), (100, named("b", "critical"))])
    assert ended["a"][1] == "evicted"
    assert ended["b"][1] == "completed"
    assert gateway.counters.num_evicted == 1


def test_no_request_is_evicted_for_a_sheddable_one() -> None:
    simulated, gateway = controlled(evicts_in_flight=True)
    ended = endings(simulated, [(0, named("a", "batch")), (100, named("b", "batch"))])
    assert [outcome for _, outcome in ended.values()] == ["completed", "completed"]
    assert gateway.counters.num_evicted == 0


def test_a_request_whose_client_hangs_up_leaves_the_queue() -> None:
    simulated, gateway = controlled()
    simulated.abort("b", 400)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    assert ended["b"] == (400, "aborted")
    assert gateway.num_waiting == 0


def test_requests_are_rejected_when_all_instances_are_gone() -> None:
    simulated, _ = controlled()
    simulated.kill(0, 500)
    ended = endings(simulated, [(0, named("a")), (100, named("b"))])
    assert ended["a"][1] == "failed"
    assert ended["b"][1] == "rejected"


def test_the_order_by_urgency_is_priority_then_deadline_then_arrival_and_rises_while_requests_wait() -> None:
    urgency = GatewayUrgency(config(engine="vllm", priority_policy="slo-urgency", urgency=UrgencySettings(step=5)))
    line, waiting = queue("urgency"), {}
    for name, priority, slo_e2e_us in (
        *(("late", 4, 900_000), ("soon", 4, 400_000), ("never", 4, 0)),
        *(("rises", 8, 100_000), ("first", 3, 900_000), ("gone", 8, 90_000)),
    ):
        sequence = Sequence(request(name)._replace(priority=priority, slo_e2e_us=slo_e2e_us), 0)
        entered = line.enter(sequence, STANDARD, "", 0, urgency.enter(sequence)).waiting
        assert entered is not None
        waiting[name] = entered
    line.leave(waiting["gone"])
    urgency.leave(waiting["gone"].sequence)
    assert urgency.rise(49_999) == []
    risen = urgency.rise(60_000)
    assert [each.request.id for each in risen] == ["rises"]
    line.update_rank(waiting["rises"])
    assert drain(line) == ["rises", "first", "soon", "late", "never"]
    urgency.leave(waiting["rises"].sequence)
    assert (waiting["rises"].sequence.priority, waiting["gone"].sequence.priority) == (3, 8)


def test_a_gateway_before_instances_that_go_by_the_time_allowed_does_so_too() -> None:
    sequence = Sequence(request("a")._replace(slo_e2e_us=400), 100)
    assert GatewayUrgency(config(engine="vllm", scheduler="priority-deadline")).enter(sequence) == 500
    assert GatewayUrgency(config(engine="vllm", scheduler="priority-slo-target")).enter(sequence) == 400


def test_a_gateway_by_urgency_sends_the_urgent_first_though_they_came_last() -> None:
    """One place, taken by a long request; the others wait at the gateway, and the one due soonest goes first."""
    flags: dict[str, Any] = {
        "model": "qwen/qwen3-14b",
        "num_instances": 2,
        "max_num_seqs": 1,
        "priority_policy": "slo-urgency",
        "urgency_window": 30_000,
        "flow_control": True,
        "saturation_detector": "places",
        "snapshot_refresh_interval": 0,
        "dispatch_tick_interval": 0,
    }
    ends: dict[str, list[str]] = {}
    for order in ("global-fifo", "urgency"):
        options = options_from(ClusterOptions, dispatch_order=order, **flags)
        simulation = build_simulation(options, resolve(options.deployment))
        arrivals = [(each, _urgent(f"long{each}", 60, 9, 0)) for each in range(2)]
        arrivals += [(100 + each, _urgent(f"r{each}", 3, 9 - each % 3, 40_000)) for each in range(9)]
        events = run_virtual(simulation, arrivals)
        ends[order] = [each.sequence.request.id for each in events if isinstance(each, Finished)]
    assert ends["global-fifo"][2:] == sorted(ends["global-fifo"][2:])
    assert [name for name in ends["urgency"] if name[0] == "r"] == [f"r{each}" for each in (2, 5, 8, 1, 4, 7, 0, 3, 6)]


def _urgent(name: str, output_tokens: int, priority: int, slo_e2e_us: int) -> Request:
    asked = request(name, output_tokens=output_tokens)
    return asked._replace(priority=priority, slo_e2e_us=slo_e2e_us)
