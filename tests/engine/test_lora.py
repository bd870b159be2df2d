"""LoRA adapters: requests that share a step, requests that wait, and the cost of loading."""

from typing import Any

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Finished, Scheduled, StepDone
from blis_sim.engine.lora import AdapterCounters, LoraSettings, LoraSlots
from blis_sim.engine.request import Request, UniqueBlocks
from tests.fakes import TestLatency


def request(name: str, adapter: str = "", output_tokens: int = 3) -> Request:
    return Request(name, 8, output_tokens, UniqueBlocks(name), output_tokens, adapter=adapter)


def new_engine(settings: LoraSettings | None = None) -> Engine:
    config = EngineConfig(100, engine="vllm", async_scheduling=False, lora=settings or LoraSettings())
    return Engine(config, TestLatency(step_us=1000))


def run(engine: Engine, *requests: Request) -> tuple[list[str], list[str]]:
    """The requests in the order of their admission and in that of their end."""
    for each in requests:
        engine.submit(each, 0)
    events = engine.advance(10**9)
    admitted = [event.sequence.request.id for event in events if isinstance(event, Scheduled)]
    finished = [event.sequence.request.id for event in events if isinstance(event, Finished)]
    engine.check_integrity()
    return admitted, finished


def test_a_request_whose_adapter_has_no_slot_is_passed_over_and_keeps_its_place() -> None:
    engine = new_engine()
    admitted, finished = run(engine, request("a", "x"), request("b", "y"), request("c", "x"), request("d"))
    assert admitted == ["a", "c", "d", "b"]
    assert finished == ["a", "c", "d", "b"]


def test_more_slots_let_more_adapters_share_a_step() -> None:
    admitted, _ = run(new_engine(LoraSettings(max_loras=2)), request("a", "x"), request("b", "y"), request("c", "z"))
    assert admitted == ["a", "b", "c"]
    engine = new_engine(LoraSettings(max_loras=2))
    for index, adapter in enumerate("xyzw"):
        engine.submit(request(f"r{index}", adapter, 50), 0)
    engine.advance(1500)
    stats = engine.stats
    assert (stats.num_running, stats.num_waiting, stats.num_deferred) == (2, 2, 2)


def test_without_adapters_every_request_runs() -> None:
    admitted, _ = run(new_engine(), *(request(f"r{index}") for index in range(5)))
    assert admitted == [f"r{index}" for index in range(5)]


def test_a_step_waits_for_the_adapters_that_it_brings_in() -> None:
    engine = new_engine(LoraSettings(max_loras=1, max_cpu_loras=2, load_us=500, swap_us=20))
    run(engine, request("a", "x", 2), request("b", "y", 1), request("c", "x", 1))
    # Admitted a and c, then b; x is loaded once, y afterwards.
    assert list(engine.steps.durations()) == [1520, 1000, 1520]


def test_an_adapter_in_memory_is_only_copied() -> None:
    slots = LoraSlots(LoraSettings(max_loras=1, max_cpu_loras=2, load_us=500, swap_us=20), AdapterCounters())
    assert [slots.use([name]) for name in ("x", "y", "x", "z", "x", "y")] == [520, 520, 20, 520, 20, 520]
    assert slots.use(["y"]) == 0


def test_loading_delays_no_earlier_request() -> None:
    engine = new_engine(LoraSettings(load_us=500))
    engine.submit(request("a", output_tokens=5), 0)
    engine.submit(request("b", "x", 1), 1500)
    steps = [event.at for event in engine.advance(10**9) if isinstance(event, StepDone)]
    assert steps == [1000, 2000, 3500, 4500, 5500]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"max_loras": 0}, "max_loras must be at least 1, got 0"),
        ({"max_loras": 3, "max_cpu_loras": 2}, "max_cpu_loras must be at least max_loras, 3, got 2"),
        ({"load_us": -1}, "the time to load or swap an adapter must be at least 0"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(EngineError, match=f"^{complaint}$"):
        LoraSettings(**settings)
