"""Runs that are repeated until the intervals of their means are narrow enough."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError, options_from
from observe.command import interval_of, run
from observe.options import ObserveOptions
from traces import read_trace


def test_the_interval_is_that_of_students_t() -> None:
    # Mean 12, deviation 2, and 2.5706 the 97.5 % quantile of t with 5 degrees of freedom.
    found = interval_of([10.0, 14.0, 10.0, 14.0, 12.0, 12.0])
    assert found.mean == 12
    assert found.within == pytest.approx(2.5706 * (16 / 5) ** 0.5 / 6**0.5 / 12, rel=1e-4)


def test_a_run_is_repeated_with_other_prompts_until_the_means_are_known(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {"url": server_url, "model": "ok-60-10", "rate": 100.0, "num_requests": 8}
    # Three runs always; latencies of 60 ms and more differ little from run to run.
    assert run(options_from(ObserveOptions, **values, output_tokens=4, output="x", until_within=5.0)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_within"]
    assert [each["recording"] for each in found["runs"]] == ["x-1", "x-2", "x-3"]
    assert found["means"]["ttft_ms"]["mean"] == pytest.approx(sum(each["ttft_ms"] for each in found["runs"]) / 3)
    assert found["means"].keys() == {"ttft_ms", "e2e_ms", "itl_ms"}
    seeds = [read_trace(f"x-{number}.yaml").header.workload_seed for number in (1, 2, 3)]
    assert len(set(seeds)) == 3


def test_means_that_stay_wide_end_with_the_most_runs(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {"url": server_url, "model": "ok", "rate": 500.0, "num_requests": 2, "output_tokens": 2}
    assert run(options_from(ObserveOptions, **values, output="y", until_within=1e-9, most_runs=4)) == 1
    written = capsys.readouterr()
    assert len(json.loads(written.out)["runs"]) == 4
    assert not json.loads(written.out)["is_within"]
    assert "4 runs are not enough for means within 0.0%" in written.err
    assert "has no effect" not in written.err


def test_a_run_without_answers_ends_the_repetition(server_url: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"url": server_url, "model": "error500", "rate": 500.0, "num_requests": 2}
    assert run(options_from(ObserveOptions, **values, output=str(tmp_path / "z"), until_within=0.5)) == 1
    assert not (tmp_path / "z-2.csv").exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"resume": True}, "--until-within and --resume exclude each other: each run has files of its own"),
        ({"format": "blis"}, "--until-within has no result in the form of BLIS"),
        ({"find_knee": True}, "--find-knee and --until-within exclude each other"),
        ({"most_runs": 2}, "--most-runs must be at least 3"),
    ],
)
def test_what_cannot_be_repeated_is_refused(given: dict[str, Any], complaint: str) -> None:
    values: dict[str, Any] = {"url": "http://localhost:1", "rate": 1.0, "output": "x", "num_requests": 5}
    with pytest.raises(BlisError, match=f"^{complaint}"):
        options_from(ObserveOptions, **values, until_within=0.05, **given)
