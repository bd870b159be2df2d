from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.cluster.gateway.fairness import FAIRNESS
from blis_sim.engine.cluster.gateway.orders import DISPATCH_ORDERS
from blis_sim.engine.cluster.gateway.queue import QueueLimits, Refusal
from blis_sim.engine.cluster.gateway.waiting import Waiting
from tests.engine.cluster.gateway.queues import BATCH, CRITICAL, SHEDDABLE, STANDARD, drain, enter, queue


def test_more_important_classes_go_first_and_within_one_who_came_first() -> None:
    for order in ("fifo", "priority"):
        line = queue(order)
        for name, importance in (("b1", BATCH), ("s1", STANDARD), ("c1", CRITICAL), ("s2", STANDARD), ("c2", CRITICAL)):
            enter(line, name, importance)
        assert drain(line) == ["c1", "c2", "s1", "s2", "b1"]


def test_global_fifo_does_not_look_at_classes() -> None:
    line = queue("global-fifo")
    for name, importance in (("b", BATCH), ("s", STANDARD), ("c", CRITICAL)):
        enter(line, name, importance)
    assert drain(line) == ["b", "s", "c"]


def test_by_deadline_the_most_urgent_of_a_class_goes_first_and_those_without_a_target_last() -> None:
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


def test_a_saturated_cluster_gets_nothing() -> None:
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


def test_bands_that_were_seen_before_still_lower_the_ceilings() -> None:
    line = queue(limits=QueueLimits(usage_limit=0.5))
    enter(line, "c", CRITICAL)
    assert drain(line) == ["c"]
    enter(line, "s", STANDARD)
    assert drain(line, saturation=0.5) == []


def test_a_full_band_refuses_and_others_do_not() -> None:
    line = queue(limits=QueueLimits(max_waiting_per_band=1))
    assert enter(line, "s1", STANDARD).refusal is None
    assert enter(line, "s2", STANDARD).refusal is Refusal.BAND_FULL
    assert enter(line, "c1", CRITICAL).refusal is None
    assert drain(line) == ["c1", "s1"]


def test_a_full_queue_refuses_whatever_comes() -> None:
    line = queue(limits=QueueLimits(max_waiting=1))
    enter(line, "b", BATCH)
    assert enter(line, "c", CRITICAL).refusal is Refusal.QUEUE_FULL
    assert drain(line) == ["b"]


def test_shedding_drops_the_latest_of_the_least_important_for_one_that_matters_more() -> None:
    line = queue(limits=QueueLimits(max_waiting=4, sheds=True))
    for name, importance in (("b1", BATCH), ("x1", SHEDDABLE), ("x2", SHEDDABLE), ("s1", STANDARD)):
        enter(line, name, importance)
    shed = [enter(line, f"c{i}", CRITICAL).shed for i in range(3)]
    assert [each.sequence.request.id for each in shed if each is not None] == ["x2", "x1", "b1"]
    assert enter(line, "c3", CRITICAL).refusal is Refusal.QUEUE_FULL
    assert drain(line) == ["c0", "c1", "c2", "s1"]


def test_nobody_is_shed_for_an_equal() -> None:
    line = queue(limits=QueueLimits(max_waiting=1, sheds=True))
    enter(line, "b1", BATCH)
    entry = enter(line, "b2", BATCH)
    assert (entry.refusal, entry.shed) == (Refusal.QUEUE_FULL, None)


def test_who_has_left_is_never_dispatched() -> None:
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
    present: list[Waiting] = []
    for place, (importance, tenant, due_at) in enumerate(arrivals):
        entry = enter(line, f"r{place}", importance, tenant, place, due_at)
        if entry.shed is not None:
            ended.append(entry.shed.sequence.request.id)
        if entry.waiting is None:
            ended.append(f"r{place}")
        else:
            present.append(entry.waiting)
        present = [waiting for waiting in present if not waiting.is_gone]
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
