"""The virtual-time driver: all that happens, in order, up to a horizon."""

import itertools
from collections.abc import Iterator

from hypothesis import assume, given, settings

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Scheduled, StepDone
from blis_sim.engine.request import Request
from blis_sim.engine.simulation import ARRIVALS_AHEAD, run_virtual
from tests.examples import examples
from tests.fakes import TestLatency, config, request, run
from tests.strategies import Workload, workloads

LONG_ENOUGH_US = 500_000
MANY_STEPS = 5_000


def engine(latency: TestLatency | None = None) -> Engine:
    return Engine(config(), latency or TestLatency())


def test_a_run_without_arrivals_is_empty() -> None:
    assert run(engine(), []) == []


def test_a_run_ends_when_nothing_is_left_to_do() -> None:
    sut = engine()
    run(sut, [(0, request("a")), (50_000, request("b"))])
    assert sut.next_event_at() is None
    assert (sut.stats.num_running, sut.stats.num_waiting) == (0, 0)


def test_arrivals_are_read_only_a_little_further_than_the_clock_has_come() -> None:
    read: list[str] = []

    def arrivals() -> Iterator[tuple[int, Request]]:
        for number in itertools.count():
            read.append(f"r{number}")
            yield number * 10_000, request(f"r{number}", output_tokens=1)

    events = run_virtual(engine(), arrivals())
    ended = itertools.islice((event for event in events if isinstance(event, Finished)), 3)
    assert [event.sequence.request.id for event in ended] == ["r0", "r1", "r2"]
    assert len(read) <= 2 * ARRIVALS_AHEAD


def test_no_event_after_the_horizon_happens() -> None:
    events = run(engine(), [(0, request("a", output_tokens=9)), (2_500, request("b"))], horizon_us=2_500)
    assert [event.at for event in events if isinstance(event, StepDone)] == [1_000, 2_000]


def test_an_event_at_the_horizon_itself_happens() -> None:
    events = run(engine(), [(0, request(output_tokens=2))], horizon_us=2_000)
    assert [event.at for event in events if isinstance(event, Finished)] == [2_000]


def test_an_arrival_after_the_horizon_never_happens() -> None:
    sut = engine()
    run(sut, [(0, request("a", output_tokens=1)), (5_000, request("b"))], horizon_us=4_999)
    assert sut.next_event_at() is None
    assert sut.counters.num_enqueued == 1


def test_requests_that_arrive_at_one_instant_are_seen_by_the_same_step() -> None:
    events = run(engine(), [(7, request("a")), (7, request("b")), (8, request("c"))])
    assert [(event.at, event.sequence.request.id) for event in events if isinstance(event, Scheduled)] == [
        (7, "a"),
        (7, "b"),
        (1_007, "c"),
    ]


@settings(max_examples=examples(60), deadline=None)
@given(workloads(with_hang_ups=False))
def test_reading_arrivals_late_gives_the_run_of_an_engine_with_all_arrivals_at_the_start(workload: Workload) -> None:
    knowing = workload.engine()
    for at, each in workload.arrivals:
        knowing.submit(each, at)
    expected = []
    while (due_at := knowing.next_event_at()) is not None:
        assume(due_at < LONG_ENOUGH_US and len(knowing.steps) < MANY_STEPS)
        expected += [(event.at, type(event)) for event in knowing.advance(due_at)]
    reported = [(event.at, type(event)) for event in run(workload.engine(), workload.arrivals)]
    assert reported == expected
