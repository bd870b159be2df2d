"""Choice of the request that loses its blocks."""

from blis_sim.engine.scheduler.policies import VICTIMS
from blis_sim.engine.sequence import Sequence
from tests.fakes import request


def running(*priorities_and_arrivals: tuple[int, int]) -> list[Sequence]:
    sequences = []
    for number, (priority, arrived_at) in enumerate(priorities_and_arrivals):
        sequence = Sequence(request(f"r{number}"), arrived_at)
        sequence.priority = priority
        sequences.append(sequence)
    return sequences


def test_by_default_the_last_admitted_request_is_preempted() -> None:
    assert VICTIMS["fcfs"](running((9, 9), (0, 0), (5, 5))) == 2


def test_by_priority_the_least_urgent_request_is_preempted() -> None:
    assert VICTIMS["priority"](running((1, 0), (7, 0), (3, 0))) == 1


def test_of_equally_urgent_requests_the_latest_arrival_is_preempted() -> None:
    assert VICTIMS["priority"](running((7, 5), (7, 9), (7, 1), (0, 99))) == 1


def test_of_equal_requests_the_one_nearest_the_tail_is_preempted() -> None:
    assert VICTIMS["priority"](running((7, 5), (7, 5), (0, 5))) == 1


def test_the_only_running_request_can_be_preempted() -> None:
    assert [choose(running((3, 3))) for choose in VICTIMS.values()] == [0] * len(VICTIMS)
