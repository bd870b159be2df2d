"""Requests of one message come to vLLM's engine one behind the other, so that an idle engine starts with the first."""

from typing import Any

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, StepDone
from blis_sim.engine.latency.blackbox import Blackbox
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency, config, request, run


def message(*names: str, output_tokens: int = 3) -> list[Request]:
    first, *others = (request(name, output_tokens=output_tokens) for name in names)
    return [first, *(each._replace(follows=first.id) for each in others)]


def emitted(arrivals: list[tuple[Micros, Request]], **settings: Any) -> list[list[str]]:
    """The requests with a token from each step."""
    engine = Engine(config(**settings), TestLatency())
    events = run(engine, arrivals)
    engine.check_integrity()
    return [[each.request.id for each in event.emitted] for event in events if isinstance(event, StepDone)]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_idle_engine_starts_a_step_with_the_first(is_async: bool) -> None:
    arrivals = [(5_000, each) for each in message("a", "b", "c")]
    found = emitted(arrivals, engine="vllm", async_scheduling=is_async)
    assert found == [["a"], ["a", "b", "c"], ["a", "b", "c"], ["b", "c"]]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_busy_engine_takes_them_together(is_async: bool) -> None:
    arrivals = [(0, request("z", output_tokens=9)), *((1_500, each) for each in message("a", "b"))]
    alike = [(at, each._replace(follows="")) for at, each in arrivals]
    settings: dict[str, Any] = {"engine": "vllm", "async_scheduling": is_async}
    assert emitted(arrivals, **settings) == emitted(alike, **settings)


def test_a_longer_prompt_behind_the_first_does_not_overtake_it() -> None:
    first, second = message("a", "b")
    long = second._replace(input_tokens=40)
    engine = Engine(config(engine="vllm"), Blackbox(alpha=(0, 10, 0), beta=(1000, 0, 0)))
    at = 1_000
    engine.submit(first, at)
    engine.submit(long, at + engine.queueing_time(first) - engine.queueing_time(long))
    steps = [event for event in engine.advance(50_000) if isinstance(event, StepDone)]
    assert [each.request.id for each in steps[0].emitted] == ["a"]


def test_one_that_follows_nothing_here_starts_by_itself() -> None:
    (lone,) = message("a", "b", output_tokens=2)[1:]
    assert emitted([(0, lone)], engine="vllm") == [["b"], ["b"]]


def test_blis_takes_them_together() -> None:
    assert emitted([(0, each) for each in message("a", "b", output_tokens=1)], engine="blis") == [["a", "b"]]


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_client_that_hangs_up_at_once_leaves_the_others(gone: str) -> None:
    engine = Engine(config(engine="vllm"), TestLatency())
    for each in message("a", "b", "c"):
        engine.submit(each, 100)
    engine.abort(gone, 100)
    ended = {event.sequence.request.id for event in run(engine, []) if isinstance(event, Finished)}
    assert {"a", "b", "c"} - {gone} <= ended
    engine.check_integrity()


def test_calls_of_the_driver_between_arrivals_change_nothing() -> None:
    arrivals = [(at, each) for at, name in ((0, "a"), (700, "b"), (9_000, "c")) for each in message(name, f"{name}2")]
    whole = Engine(config(engine="vllm"), TestLatency())
    at_once = run(whole, arrivals)
    stepwise: list[Any] = []
    engine = Engine(config(engine="vllm"), TestLatency())
    for at, each in arrivals:
        engine.submit(each, at)
    for until in range(0, 20_000, 300):
        stepwise += engine.advance(until)
    ends = [[(e.at, e.sequence.request.id) for e in found if isinstance(e, Finished)] for found in (at_once, stepwise)]
    assert ends[0] == ends[1]
