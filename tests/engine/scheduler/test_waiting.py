"""The order of waiting requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.scheduler.policies import ORDERS
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES
from tests.fakes import request


def waiting(request_id: str, arrived_at: int = 0, input_tokens: int = 10, slo_class: str = "") -> Sequence:
    sequence = Sequence(request(request_id, input_tokens), arrived_at)
    sequence.priority = DEFAULT_SLO_PRIORITIES.urgency(slo_class)
    return sequence


def ordered(name: str, *sequences: Sequence) -> list[str]:
    order = ORDERS[name]
    assert order is not None
    return [sequence.request.id for sequence in sorted(sequences, key=order)]


def test_first_come_first_served_leaves_the_queue_as_it_is() -> None:
    assert ORDERS["fcfs"] is None


def test_by_priority_the_class_beats_the_arrival() -> None:
    late_but_critical = waiting("b", arrived_at=9, slo_class="critical")
    assert ordered("priority-fcfs", waiting("a", slo_class="batch"), late_but_critical) == ["b", "a"]


def test_by_reverse_priority_the_least_urgent_goes_first() -> None:
    assert ordered("reverse-priority", waiting("a", slo_class="critical"), waiting("b", slo_class="batch")) == [
        "b",
        "a",
    ]


def test_by_prompt_length_the_shortest_goes_first() -> None:
    assert ordered("sjf", waiting("a", 0, 30), waiting("b", 5, 10), waiting("c", 9, 20)) == ["b", "c", "a"]


@pytest.mark.parametrize("name", ["priority-fcfs", "reverse-priority", "sjf"])
def test_equals_go_by_arrival_and_then_by_id(name: str) -> None:
    assert ordered(name, waiting("b", 1), waiting("c", 0), waiting("a", 1)) == ["c", "a", "b"]


@given(st.permutations([waiting(f"r{n}", n % 3, 10 + n % 2, ["", "batch", "critical"][n % 3]) for n in range(8)]))
def test_the_order_does_not_depend_on_how_the_queue_stood(queue: list[Sequence]) -> None:
    for name in ("priority-fcfs", "reverse-priority", "sjf"):
        assert ordered(name, *queue) == ordered(name, *reversed(queue))
