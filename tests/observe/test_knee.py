"""The search for the highest rate at which a server meets the targets."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError, options_from
from observe.command import PRECISION, Run, Search, rewritten, run
from observe.options import ObserveOptions


@pytest.mark.parametrize("first_per_s", [0.3, 1.0, 64.0])
def test_the_search_ends_close_below_the_rate_that_a_server_bears(first_per_s: float) -> None:
    search = Search(first_per_s)
    while not search.is_over:
        rate = search.next_per_s
        search.add(Run(rate, None, rate <= 11.0, rate, ""))
    assert search.highest_met is not None
    assert 11.0 / (1 + PRECISION) <= search.highest_met.rate_per_s <= 11.0
    assert len(search.runs) <= 12


def test_the_search_ends_at_the_highest_rate_that_can_be_asked_for() -> None:
    search = Search(300_000.0)
    while not search.is_over:
        search.add(Run(search.next_per_s, None, True, 9.0, ""))
    assert [each.rate_per_s for each in search.runs] == [300_000, 600_000, 1_000_000]


def test_a_server_that_meets_no_target_is_given_up() -> None:
    search = Search(8.0)
    while not search.is_over:
        search.add(Run(search.next_per_s, 0.0, False, 0.0, ""))
    assert (search.highest_met, len(search.runs)) == (None, 8)


def test_each_rate_has_a_recording_and_prompts_of_its_own(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = {"url": server_url, "model": "slow", "rate": 64.0, "num_requests": 2, "timeout": 0.2}
    assert run(options_from(ObserveOptions, **values, output="x", find_knee=True, slo_ttft="default=1s")) == 1
    assert not Path("x-2.csv").exists()  # a server that answers nothing has no knee
    capsys.readouterr()
    values |= {"model": "ok", "rate": 4096.0, "prompt_tokens": 8, "output_tokens": 2}
    options = options_from(ObserveOptions, **values, output="y", find_knee=True, slo_e2e="default=1us")
    assert run(options) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["knee_requests_per_s"] is None
    assert [each["recording"] for each in found["runs"]] == [f"y-{number}" for number in range(1, 9)]
    assert [each["rate_per_s"] for each in found["runs"][:3]] == [4096, 2048, 1024]
    assert Path("y-8.csv").exists()
    options = options_from(ObserveOptions, **values | {"output": "z"}, find_knee=True, ttft_p99="1us", e2e_p90="1m")
    assert run(options) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(each["share"], each["is_met"]) for each in found["runs"]] == [(None, False)] * 8


def test_a_search_lasts_half_a_minute_at_each_rate_and_has_no_limit_of_requests_in_flight() -> None:
    added = rewritten(["--url", "http://localhost:1", "--find-knee", "--slo-ttft", "default=1s"])
    assert added[added.index("--duration") + 1] == "30s"
    assert added[added.index("--rate") + 1] == "1"
    assert not {"--max-concurrency", "--num-requests"} & set(added)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "--find-knee needs the targets to meet: --goodput, or percentiles such as --ttft-p99"),
        (
            {"slo_ttft": "default=1s", "resume": True},
            "--find-knee and --resume exclude each other: each rate has files",
        ),
        ({"slo_ttft": "default=1s", "format": "blis"}, "--find-knee has no result in the form of BLIS"),
        (
            {"slo_ttft": "default=1s", "rate": None, "concurrency": 2},
            "--find-knee needs --rate, the first rate to try",
        ),
    ],
)
def test_what_a_search_cannot_do_is_refused(given: dict[str, Any], complaint: str) -> None:
    values = {"url": "http://localhost:1", "rate": 1.0, "output": "x", "num_requests": 5, "find_knee": True}
    with pytest.raises(BlisError, match=f"^{complaint}"):
        options_from(ObserveOptions, **{**values, **given})
