"""LoRA adapters as BLIS loads them: one at a time, for the head of the queue, while others compute."""

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Scheduled
from blis_sim.engine.lora import Adapter, LoraSettings
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.scheduler.blis import slowdown
from tests.fakes import TestLatency

RANKS = {"x": 8, "y": 16, "z": 32, "w": 8}
LOAD_US = 1500


def request(name: str, adapter: str = "", output_tokens: int = 3) -> Request:
    return Request(name, 8, output_tokens, UniqueBlocks(name), output_tokens, adapter=adapter)


def run(capacity: int, *requests: Request, at: int = 0) -> tuple[dict[str, int], dict[str, int], Engine]:
    """When each request was admitted, and when it ended."""
    adapters = tuple(Adapter(name, rank, LOAD_US) for name, rank in RANKS.items())
    lora = LoraSettings(max_loras=capacity, adapters=adapters)
    engine = Engine(EngineConfig(100, engine="blis", lora=lora), TestLatency(step_us=1000))
    for each in requests:
        engine.submit(each, at)
    events = engine.advance(10**9)
    admitted = {event.sequence.request.id: event.at for event in events if isinstance(event, Scheduled)}
    ended = {event.sequence.request.id: event.at for event in events if isinstance(event, Finished)}
    engine.check_integrity()
    return admitted, ended, engine


def test_the_head_of_the_queue_waits_for_its_adapter_and_holds_up_those_behind_it() -> None:
    admitted, _, _ = run(2, request("a", "x"), request("b"))
    assert admitted == {"a": LOAD_US, "b": LOAD_US}


def test_adapters_are_loaded_one_after_the_other_while_others_compute() -> None:
    admitted, _, engine = run(2, request("a", "x", 9), request("b", "y"))
    # The load of y begins with the step after a is admitted, and b joins the first step after its end.
    steps = [engine.steps.start(index) for index in range(engine.num_begun_steps)]
    begun = next(at for at in steps if at > admitted["a"])
    assert admitted["b"] == next(at for at in steps if at >= begun + LOAD_US)


def test_an_adapter_in_use_stays_and_the_least_recently_used_leaves() -> None:
    _, ended, engine = run(1, request("a", "x", 20), request("b", "y"), request("c", "x"))
    counters = engine.counters.adapters
    assert (dict(counters.loads), dict(counters.evictions)) == ({"x": 2, "y": 1}, {"x": 1, "y": 1})
    assert list(ended) == ["a", "b", "c"]


def test_room_for_all_adapters_loads_each_once() -> None:
    requests = [request(f"r{number}", "xyzw"[number % 4]) for number in range(12)]
    _, ended, engine = run(4, *requests)
    assert dict(engine.counters.adapters.loads) == dict.fromkeys("xyzw", 1)
    assert not engine.counters.adapters.evictions
    assert len(ended) == 12


def test_a_request_that_is_aborted_gives_its_adapter_back() -> None:
    adapters = tuple(Adapter(name, 8, LOAD_US) for name in "xy")
    lora = LoraSettings(max_loras=1, adapters=adapters)
    engine = Engine(EngineConfig(100, engine="blis", lora=lora), TestLatency(step_us=1000))
    engine.submit(request("a", "x", 10_000), 0)
    engine.submit(request("b", "y"), 1)
    engine.advance(20_000)
    engine.abort("a", 20_001)
    ended = [event.sequence.request.id for event in engine.advance(10**8) if isinstance(event, Finished)]
    assert ended == ["a", "b"]


@pytest.mark.parametrize(
    ("adapters", "factor"),
    [(set(), 1.0), ({"x"}, 1.02), ({"x", "w"}, 1.04), ({"x", "y"}, 1.07), ({"z"}, 1.06), ({"x", "z"}, 1.12)],
)
def test_a_step_is_longer_by_its_adapters_and_their_largest_rank(adapters: set[str], factor: float) -> None:
    assert slowdown(adapters, RANKS) == pytest.approx(factor)


@pytest.mark.parametrize(("rank", "factor"), [(1, 1.02), (12, 1.02), (13, 1.035), (24, 1.035), (64, 1.06)])
def test_other_ranks_count_as_the_nearest_the_lower_of_two(rank: int, factor: float) -> None:
    assert slowdown({"a"}, {"a": rank}) == pytest.approx(factor)
