import csv
import io
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import options_from
from observe.command import run
from observe.figures import RequestLog, RunStats, goodput_lines, goodput_summary, summarize
from observe.options import ObserveOptions
from tests.observe.ended_requests import ended
from traces import SloTargets


def log_of(*requests: object) -> RequestLog:
    log = RequestLog()
    for each in requests:
        log.add(each)  # type: ignore[arg-type]
    return log


def test_without_targets_nothing_is_judged() -> None:
    assert goodput_summary(log_of(ended()), {}, 1) == {}
    assert goodput_lines({}) == []


def test_each_class_is_held_to_its_own_targets() -> None:
    log = log_of(
        ended(token_ms=(10, 20), slo_class="batch"),
        ended(token_ms=(200, 300), slo_class="batch"),
        ended(token_ms=(10, 20)),
        ended(token_ms=(60, 70)),
    )
    found = goodput_summary(log, {"batch": SloTargets(ttft_ms=500), "default": SloTargets(ttft_ms=50)}, 2)
    assert (found["goodput_rps"], found["slo_attainment"]) == (1.5, 0.75)
    assert found["per_class"]["batch"]["slo_attainment"] == 1
    assert found["per_class"]["default"]["slo_attainment_by_dim"] == {"ttft": 0.5}
    assert found["per_class"]["default"]["ttft_ms"]["p50"] == 35
    assert goodput_lines(found)[1:] == ["  batch: 100.0% of 2, TTFT 100.0%", "  default: 50.0% of 2, TTFT 50.0%"]


def test_a_stream_that_opens_before_its_first_token_is_judged_by_the_token() -> None:
    opened_early = ended(token_ms=(5, 75, 95))
    opened_early.outcome.reply.carries_tokens[0] = 0
    log = log_of(opened_early)
    assert log.latencies["ttft"].tolist() == [75_000_000]
    found = goodput_summary(log, {"default": SloTargets(ttft_ms=30)}, 1)
    assert found["per_class"]["default"]["slo_attainment_by_dim"] == {"ttft": 0}


def test_a_request_that_failed_met_no_target() -> None:
    log = log_of(ended(), ended(kind="http_500", token_ms=()), ended(kind="timeout", token_ms=(1,)))
    found = goodput_summary(log, {"default": SloTargets(ttft_ms=1000)}, 1)
    assert found["slo_attainment"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["per_class"]["default"]["count"] == 3


def test_the_time_between_tokens_is_the_mean_of_a_request_and_unknown_for_one_token() -> None:
    log = log_of(ended(token_ms=(10, 20, 60)), ended(token_ms=(10,)), ended(token_ms=(10, 500), streaming=False))
    found = goodput_summary(log, {"default": SloTargets(itl_ms=24)}, 1)["per_class"]["default"]
    assert found["itl_ms"]["mean"] == 25
    assert found["slo_attainment_by_dim"] == {"itl": 0}
    assert found["slo_attainment"] == pytest.approx(2 / 3, abs=1e-6)


def test_the_summary_of_a_run_has_the_goodput() -> None:
    stats = RunStats()
    stats.add(ended(sent_ms=0, token_ms=(10, 500)))
    stats.add(ended(sent_ms=100, token_ms=(100, 900)))
    targets = {"default": SloTargets(e2e_ms=600)}
    found = summarize(stats, requested_per_s=1, num_not_sent=0, rtt_ms=None, slo_targets=targets)
    assert (found["duration_s"], found["goodput_rps"], found["slo_attainment"]) == (1, 1, 0.5)


def test_verdicts_on_percentiles_are_columns_of_csv_and_a_missed_one_is_the_exit_code(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load: dict[str, Any] = {"rate": 100.0, "num_requests": 2, "prompt_tokens": 8, "output_tokens": 2, "format": "csv"}
    recording = {"url": server_url, "model": "ok", "output": str(tmp_path / "x")}
    assert run(options_from(ObserveOptions, **load, **recording, ttft_p99="1h", e2e_p90="1ns")) == 1
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["ttft_p99_ms_is_met"], row["e2e_p90_ms_is_met"], row["e2e_p90_ms_limit"]) == ("True", "False", "1e-06")
    assert "targets" not in row
