"""Pauses of a recorded server happen in its replay at the same instants."""

from pathlib import Path

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual
from replay.simulation.interruptions import InterruptedSimulation, Interruption
from tests.fakes import TestLatency
from traces import TraceError
from traces.server_settings import interruptions_of, plausible_simulation


def ends(*interruptions: Interruption, arrivals: tuple[int, ...] = (0, 2500)) -> dict[str, int]:
    """When each request of ten tokens ends on an engine with steps of a millisecond."""
    engine = Engine(EngineConfig(1000, engine="vllm", async_scheduling=False), TestLatency(step_us=1000))
    requests = [Request(f"r{at}", 8, 10, UniqueBlocks(f"r{at}"), 10) for at in arrivals]
    events = run_virtual(InterruptedSimulation(engine, interruptions), zip(arrivals, requests, strict=True))
    return {event.sequence.request.id: event.at for event in events if isinstance(event, Finished)}


def test_a_paused_engine_takes_no_step_and_goes_on_where_it_was() -> None:
    without = ends()
    paused = ends(Interruption(4200, "everything"), Interruption(9000, "none"))
    assert {name: at - without[name] for name, at in paused.items()} == {"r0": 4000, "r2500": 4000}


def test_an_engine_that_admits_nobody_ends_what_runs() -> None:
    paused = ends(Interruption(2000, "admissions"), Interruption(50_000, "none"))
    assert paused["r0"] == ends()["r0"]
    assert paused["r2500"] == 50_000 + 10 * 1000


def test_a_pause_before_the_first_request_and_one_without_an_end_do_no_harm() -> None:
    assert ends(Interruption(1, "everything"), Interruption(1, "none"), arrivals=(10,)) == ends(arrivals=(10,))
    assert ends(Interruption(20_000, "everything")) == ends()


def test_ended_requests_leave_the_engine_to_others() -> None:
    found = ends(Interruption(5000, "abort"), arrivals=(0, 6000))
    assert found["r0"] == 5000
    assert found["r6000"] == ends(arrivals=(6000,))["r6000"]


def test_only_interruptions_are_taken_from_a_server(tmp_path: Path) -> None:
    good = [[5, "everything"], [9, "none"]]
    assert plausible_simulation({"interruptions": good}) == {"interruptions": good}
    for bad in ([[5, "explode"]], [[0, "none"]], [["5", "none"]], {"5": "none"}, [[5]]):
        assert plausible_simulation({"interruptions": bad}) == {}
    (tmp_path / "t.server.yaml").write_text("server_settings: {}\nspeed: 2\ninterruptions: [[5, everything]]\n")
    assert interruptions_of(tmp_path / "t.yaml") == [(10, "everything")]
    (tmp_path / "t.server.yaml").write_text("server_settings: {}\ninterruptions: [[5, explode]]\n")
    with pytest.raises(
        TraceError, match=r"t\.server\.yaml key interruptions: expected pairs of microseconds and none,"
    ):
        interruptions_of(tmp_path / "t.yaml")
