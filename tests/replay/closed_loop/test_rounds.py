"""Recorded conversations replayed as a closed loop: send times of rounds, and properties that stay as recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import BlisError, options_from
from replay.arrivals import arrivals_of
from replay.closed_loop import RecordedRounds, run_closed_loop
from replay.output.findings import AnalysisConfig, analyze
from replay.output.table import summary
from replay.replay_options import ReplayOptions
from replay.simulation.simulate import Simulated
from tests.fakes import TestLatency, config
from tests.golden.same_files import assert_printed
from tests.replay.small_traces import row, trace
from traces import TraceRow, read_trace
from traces.load import SpeedOptions

STEP_US = 1_000


def replayed(
    folder: Path, *rows: TraceRow, mode: str = "generated", think_time_us: int | None = None, **settings: Any
) -> Simulated:
    """Replies of three tokens take 3,000 us."""
    limits = config(**settings)
    arrivals = arrivals_of(trace(folder, rows, mode), "m", limits)
    queue = RecordedRounds(arrivals, is_real=mode == "real", think_time_us=think_time_us)
    return run_closed_loop(Engine(limits, TestLatency(step_us=STEP_US)), queue)


def said(round_index: int, arrival_us: int, session: str = "s", **columns: Any) -> TraceRow:
    return row(round_index, arrival_us, session_id=session, round_index=round_index, **columns)


def arrivals(simulated: Simulated) -> dict[int, int]:
    return {each.number: each.arrived_at for each in simulated.requests}


def test_a_round_is_sent_its_recorded_pause_after_the_simulated_reply(tmp_path: Path) -> None:
    rows = [said(0, 100), said(1, 90_000, think_time_us=500), said(2, 95_000, think_time_us=0)]
    assert arrivals(replayed(tmp_path, *rows)) == {0: 100, 1: 100 + 3_000 + 500, 2: 3_600 + 3_000 + 1}


def test_a_pause_that_was_not_recorded_is_the_one_between_reply_and_request_of_a_real_server(tmp_path: Path) -> None:
    epoch = 1_795_000_000_000_000
    rows = [
        said(0, 100, send_time_us=epoch, last_chunk_time_us=epoch + 40_000),
        said(1, 50_000, send_time_us=epoch + 47_000, last_chunk_time_us=epoch + 60_000),
    ]
    assert arrivals(replayed(tmp_path, *rows, mode="real")) == {0: 100, 1: 100 + 3_000 + 7_000}


def test_a_pause_of_a_real_server_has_the_time_by_which_the_client_was_late(tmp_path: Path) -> None:
    """The client was to pause for 500 us and sent 700 us after the last reply."""
    epoch = 1_795_000_000_000_000
    for links in ({"session_id": "s"}, {"parents": "0"}):
        rows = [
            row(0, 100, send_time_us=epoch, last_chunk_time_us=epoch + 40_000, **({} if "parents" in links else links)),
            row(1, 50_000, send_time_us=epoch + 40_700, round_index=1, think_time_us=500, **links),
        ]
        assert arrivals(replayed(tmp_path, *rows, mode="real")) == {0: 100, 1: 100 + 3_000 + 700}
        assert arrivals(replayed(tmp_path, *rows, mode="real", think_time_us=20)) == {0: 100, 1: 100 + 3_000 + 20}


def test_without_recorded_times_a_pause_is_the_gap_between_arrivals(tmp_path: Path) -> None:
    assert arrivals(replayed(tmp_path, said(0, 0), said(1, 20_000))) == {0: 0, 1: 23_000}


def test_a_pause_can_be_given(tmp_path: Path) -> None:
    rows = [said(0, 0), said(1, 20_000, think_time_us=70)]
    assert arrivals(replayed(tmp_path, *rows, think_time_us=2_000)) == {0: 0, 1: 5_000}


def test_rows_without_a_session_arrive_when_they_did(tmp_path: Path) -> None:
    rows = [row(7, 40), said(0, 0), said(1, 20_000), row(8, 21_000)]
    assert arrivals(replayed(tmp_path, *rows)) == {0: 0, 7: 40, 8: 21_000, 1: 23_000}


def test_a_conversation_ends_with_a_round_that_is_not_answered(tmp_path: Path) -> None:
    rows = [said(0, 0, deadline_us=1_500), said(1, 20_000)]
    assert arrivals(replayed(tmp_path, *rows)) == {0: 0}


def test_a_deadline_keeps_its_distance(tmp_path: Path) -> None:
    rows = [said(0, 0), said(1, 20_000, deadline_us=21_500), said(2, 50_000)]
    assert set(arrivals(replayed(tmp_path, *rows))) == {0, 1}
    rows[1] = said(1, 20_000, deadline_us=23_500)
    assert set(arrivals(replayed(tmp_path, *rows))) == {0, 1, 2}


def test_rounds_released_by_replies_are_those_of_the_original(reference: Path) -> None:
    """A reply is complete in a bare engine when its last step is; the time to reach the client delays no round."""
    folder = reference / "golden" / "tools"
    recorded = read_trace(folder / "run" / "s3_multiturn_closed_loop.yaml")
    deployment = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1, engine="blis"))
    found = arrivals_of(recorded, "qwen/qwen3-14b", deployment.config)
    simulated = run_closed_loop(
        Engine(deployment.config, deployment.latency),
        RecordedRounds(found, is_real=False),
        replied=lambda _, finished: finished.at,
    )
    assert_printed(summary(analyze(simulated, AnalysisConfig())), folder / "replay" / "s3_closed.stdout.txt")
    theirs = json.loads((folder / "replay" / "s3_closed.results.json").read_text())
    ours = {each.number: (each.ttft_us, each.e2e_us) for each in simulated.requests}
    assert {each["request_id"]: (each["ttft_us"], each["e2e_us"]) for each in theirs}.items() <= ours.items()


def test_the_command_has_all_rounds_in_its_results(reference: Path, tmp_path: Path) -> None:
    header = reference / "golden" / "tools" / "run" / "s3_multiturn_closed_loop.yaml"
    results = tmp_path / "results.json"
    command = ["replay", str(header), "--model", "qwen/qwen3-14b", "--session-mode", "closed-loop"]
    assert run([*command, "--think-time-ms", "300", "--results-path", str(results)]) == 0
    assert sorted(each["request_id"] for each in json.loads(results.read_text())) == list(range(64))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"think_time_ms": 5}, "--think-time-ms needs --session-mode closed-loop"),
        (
            {"session_mode": "closed-loop", "reissue": True},
            "--reissue and --session-mode closed-loop exclude each other",
        ),
        ({"session_mode": "open"}, "--session-mode must be one of fixed, closed-loop, fixed-accumulate, got 'open'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        options_from(ReplayOptions, model="qwen/qwen3-14b", trace="x.yaml", **given)


def test_a_faster_recording_keeps_its_pauses_unless_they_are_scaled(tmp_path: Path) -> None:
    rows = [said(0, 100), said(1, 9_100, think_time_us=600), said(0, 8_100, "t")]
    read = trace(tmp_path, rows, "generated")

    def sent(**given: Any) -> list[int]:
        queue = RecordedRounds(arrivals_of(read, "m", config()), is_real=False, speed=SpeedOptions(**given))
        return sorted(
            each.arrived_at for each in run_closed_loop(Engine(config(), TestLatency(STEP_US)), queue).requests
        )

    first, second, other = sent()
    assert sent(speedup=2.0) == [first, second, 4_100]
    assert sent(speedup=2.0, scale_pauses=True) == [first, second - 300, 4_100]
    assert other == 8_100
