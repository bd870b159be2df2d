"""Pauses of a recorded server happen in its replay at the same instants."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blis_sim
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.request import Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual
from replay.arrivals import Arrivals, arrivals_of_rows, in_phase
from replay.simulation.interruptions import InterruptedSimulation, Interruption
from tests.fakes import TestLatency
from tests.replay.small_traces import row
from traces import TraceError, TraceHeader, write_trace
from traces.server_settings import clock_origin_of, interruptions_of, plausible_simulation, write_settings


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


def test_the_instant_0_of_a_server_is_on_the_clock_of_send_times(tmp_path: Path) -> None:
    assert plausible_simulation({"clock_origin_us": 9}) == {"clock_origin_us": 9}
    for bad in (0, "9", True, 9.5, None):
        assert plausible_simulation({"clock_origin_us": bad}) == {}
    header = tmp_path / "t.yaml"
    assert clock_origin_of(header) is None
    write_settings(tmp_path / "t.server.yaml", {"speed": 2, "clock_origin_us": 1_000})
    assert clock_origin_of(header) == 2_000
    (tmp_path / "t.server.yaml").write_text("server_settings: {}\nclock_origin_us: soon\n")
    with pytest.raises(TraceError, match=r"key clock_origin_us: expected microseconds of the Unix epoch, got 'soon'"):
        clock_origin_of(header)


def test_arrivals_are_as_far_behind_a_tick_as_they_were_on_the_recorded_server() -> None:
    rows = [row(n, arrival_time_us=700 * n, send_time_us=5_000_000 + 700 * n) for n in range(3)]
    found = arrivals_of_rows(rows, EngineConfig(1000))
    moved = in_phase(Arrivals(found, 0, 0, 5_000_000), origin_us=123, period_us=1080)
    assert [(each.at - (5_000_000 + 700 * n - 123)) % 1080 for n, each in enumerate(moved.arrivals)] == [0, 0, 0]
    assert [after.at - before.at for before, after in zip(found, moved.arrivals, strict=True)] == [
        5_000_000 - moved.clock_offset_us
    ] * 3
    assert 0 <= moved.arrivals[0].at < 1080


def test_a_replay_repeats_a_server_whose_steps_wait_for_ticks(tmp_path: Path) -> None:
    """Without the phase of its timer TTFT would be off by up to a tick, 1.08 ms."""
    origin_us, path = 1_780_000_000_000_123, tmp_path / "t.yaml"
    rows = [row(n, arrival_time_us=270 + 9_000 * n, input_tokens=200, output_tokens=12) for n in range(8)]
    write_trace(path, TraceHeader(mode="generated"), rows)
    server: dict[str, Any] = {"model": "qwen/qwen3-14b", "engine": "adaptive", "hardware": "H100", "tp": 1}
    served = blis_sim.replay(path, **server).requests["ttft_ms"]
    sent = [
        replace(each, send_time_us=origin_us + each.arrival_time_us, arrival_time_us=9_000 * n)
        for n, each in enumerate(rows)
    ]
    write_trace(path, TraceHeader(mode="real", server={"model": "qwen/qwen3-14b"}), sent)
    without = blis_sim.replay(path, **server).requests["ttft_ms"]
    write_settings(tmp_path / "t.server.yaml", {"clock_origin_us": origin_us})
    assert list(blis_sim.replay(path, **server).requests["ttft_ms"]) == list(served) != list(without)
