"""Users, presets, warming up and judging in `blis observe`."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from observe.command import run
from observe.options import ObserveOptions
from observe.workload import plan_of
from traces import read_trace
from traces.workload.presets import PRESETS

Seen = Callable[[], list[dict[str, Any]]]


def options(url: str, folder: Path, **given: Any) -> ObserveOptions:
    from blis_sim.options import options_from

    usual: dict[str, Any] = {"model": "ok-0-0", "output": str(folder / "o"), "num_requests": 6}
    usual |= {"prompt_tokens": 8, "output_tokens": 2, "overwrite": True}
    return options_from(ObserveOptions, url=url, **(usual | given))


def test_users_wait_for_replies_and_think_as_long_as_is_drawn(server_url: str, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path, concurrency=2, think_time_dist="constant:value=3ms")) == 0
    rows = sorted(read_trace(tmp_path / "o.yaml").rows, key=lambda row: (row.session_id, row.round_index))
    assert len(rows) == 6
    assert {row.session_id for row in rows} == {rows[0].session_id, rows[-1].session_id}
    for before, row in itertools.pairwise(rows):
        if row.session_id == before.session_id:
            assert row.think_time_us == 3_000
            assert row.send_time_us >= before.last_chunk_time_us + 3_000


def test_a_horizon_stands_for_a_number_of_requests(tmp_path: Path) -> None:
    given = options("http://x:1", tmp_path, rate=50.0, num_requests=None, horizon=100_000, arrival="constant")
    assert [planned.at_us for planned in plan_of(given).requests] == [20_000, 40_000, 60_000, 80_000, 100_000]
    drawn = options("http://x:1", tmp_path, rate=1000.0, num_requests=None, horizon=1_000_000)
    arrivals = [planned.at_us for planned in plan_of(drawn).requests]
    assert 900 < len(arrivals) < 1100
    assert arrivals[-1] <= 1_000_000


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_the_lengths(name: str, tmp_path: Path) -> None:
    lengths = PRESETS[name].prompt
    given = options("http://x:1", tmp_path, rate=10.0, num_requests=200, workload=name)
    prompts = [planned.input_tokens for planned in plan_of(given).requests]
    assert lengths.least <= min(prompts) < max(prompts) <= lengths.most
    assert sum(prompts) / len(prompts) == pytest.approx(lengths.mean, rel=0.1)


def test_a_server_is_kept_busy_before_the_run(server_url: str, seen: Seen, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path, rate=200.0, num_requests=2, prewarm_duration="30ms")) == 0
    bodies = [request["body"] for request in seen()]
    warming = [body for body in bodies if str(body.get("prompt", "")).startswith("warm warm")]
    assert len(warming) >= 4
    assert {(body["stream"], body["max_tokens"]) for body in warming} == {(False, 64)}
    assert len(read_trace(tmp_path / "o.yaml").rows) == 2


def test_detectors_judge_a_recording(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "saturation.json"
    given = {"rate": 200.0, "detectors": ("all",), "saturation_report": str(report)}
    assert run(options(server_url, tmp_path, **given)) == 0
    labels = json.loads(capsys.readouterr().out)["saturation"]
    assert set(labels) == {"composite", "threshold", "backlog-drift"}
    assert labels["threshold"] == "STABLE"
    written = json.loads(report.read_text())
    assert written["final"] == labels
    assert len(written["trace"]) == 3 * 2 * 6  # each detector after each arrival and each reply


def test_the_kind_of_a_server_is_noted(server_url: str, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path, rate=200.0, server_type="sglang")) == 0
    assert read_trace(tmp_path / "o.yaml").header.server["type"] == "sglang"
