"""Order of events at one instant."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.events import EventKind, EventQueue
from blis_sim.engine.sequence import Outcome, Sequence
from tests.fakes import request


def taken(queue: EventQueue) -> tuple[int, int, int, int, object]:
    """The first entry, whenever it is due."""
    entry = queue.pop_due(10**9)
    assert entry is not None
    return entry


def drained(queue: EventQueue) -> list[tuple[int, int]]:
    """Instant and kind of all entries, in the order they come out."""
    entries = []
    while queue.next_at() is not None:
        at, due, *_ = taken(queue)
        entries.append((at, due))
    return entries


def test_an_empty_queue_has_nothing_due() -> None:
    assert EventQueue().next_at() is None


def test_at_one_instant_a_step_is_reported_before_arrivals_are_seen_and_those_before_the_next_step() -> None:
    queue = EventQueue()
    for due in (
        EventKind.DEADLINE,
        EventKind.DEPARTURE,
        EventKind.STEP,
        EventKind.ABORT,
        EventKind.QUEUED,
        EventKind.STEP_END,
    ):
        queue.push(5, due, Sequence(request(), 0))
    assert [due for _, due in drained(queue)] == [
        EventKind.STEP_END,
        EventKind.QUEUED,
        EventKind.ABORT,
        EventKind.STEP,
        EventKind.DEPARTURE,
        EventKind.DEADLINE,
    ]


def test_equal_entries_come_out_as_they_went_in() -> None:
    queue = EventQueue()
    names = ["b", "a", "c"]
    for name in names:
        queue.push(5, EventKind.ABORT, name)
    assert [taken(queue)[4] for _ in names] == names


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(EventKind))))
def test_the_queue_sorts_by_instant_kind_and_entry(pushed: list[tuple[int, EventKind]]) -> None:
    queue = EventQueue()
    for at, due in pushed:
        queue.push(at, due, Sequence(request(), 0))
    assert drained(queue) == sorted(pushed)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([EventKind.STEP, EventKind.DEADLINE]), st.booleans()), max_size=8
    )
)
def test_deadlines_come_out_in_order_whatever_has_ended(pushed: list[tuple[int, EventKind, bool]]) -> None:
    queue = EventQueue()
    for at, due, has_ended in pushed:
        sequence = Sequence(request(), 0)
        queue.push(at, due, sequence)
        sequence.outcome = Outcome.COMPLETED if has_ended else None
    left = [(at, due) for at, due, has_ended in pushed if due != EventKind.DEADLINE or not has_ended]
    assert [taken(queue)[:2] for _ in left] == sorted(left)
    assert queue.pop_due(10**9) is None


ARRIVALS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=4)
OTHERS = st.tuples(st.integers(0, 9), st.sampled_from([EventKind.STEP_END, EventKind.QUEUED, EventKind.STEP]))


@given(st.lists(ARRIVALS | OTHERS, max_size=6))
def test_arrivals_come_out_in_order_beside_anything_else(
    pushed: list[list[tuple[int, int]] | tuple[int, EventKind]],
) -> None:
    queue = EventQueue()
    for each in pushed:
        if isinstance(each, tuple):
            queue.push(*each)
        else:
            queue.push_queued([at for at, _ in each], [Sequence(request(), arrived_at) for _, arrived_at in each])
    entries = []
    while (due_at := queue.next_at()) is not None:
        assert queue.pop_due(due_at - 1) is None
        entry = queue.pop_due(due_at)
        assert entry is not None
        entries.append(entry)
        assert entries[-1][0] == due_at
    assert entries == sorted(entries)
    assert len(entries) == sum(len(each) if isinstance(each, list) else 1 for each in pushed)
