from typing import Any

import pytest

from blis_sim.options.provenance import Provenance
from observe.figures import RunStats, load_report, summarize
from observe.measurement import warnings_of
from observe.requests import SentRequest
from tests.observe.ended_requests import ended


def summary_text(summary: dict[str, Any]) -> str:
    return load_report(summary, lambda: Provenance(command="blis observe")).text("table")


def stats(*requests: SentRequest) -> RunStats:
    measured = RunStats()
    for each in requests:
        measured.add(each)
    return measured


def test_distributions_are_in_milliseconds_and_interpolated() -> None:
    measured = stats(*(ended(token_ms=[each]) for each in (1, 2, 3, 4)))
    summary = summarize(measured, requested_per_s=5, num_not_sent=0, rtt_ms=None)
    assert summary["ttft_ms"] == pytest.approx(
        {"mean": 2.5, "p50": 2.5, "p90": 3.7, "p95": 3.85, "p99": 3.97, "max": 4.0}
    )
    assert summary["itl_ms"] is None


def test_throughput_counts_from_the_first_sending_to_the_last_end() -> None:
    measured = stats()
    measured.kinds.update(ok=10, timeout=2)
    measured.output_tokens = 400
    measured.first_sent, measured.last_ended = 1_000_000_000, 5_000_000_000
    summary = summarize(measured, requested_per_s=3, num_not_sent=1, rtt_ms=0.5)
    assert (summary["duration_s"], summary["request_throughput_per_s"]) == (4, 2.5)
    assert summary["output_throughput_tokens_per_s"] == 100
    assert (summary["completed"], summary["failed"], summary["not_sent"]) == (10, {"timeout": 2}, 1)


def test_an_empty_measurement_divides_by_no_zero() -> None:
    summary = summarize(stats(), requested_per_s=0, num_not_sent=9, rtt_ms=None)
    assert summary["request_throughput_per_s"] == 0
    assert "0 completed, 0 failed" in summary_text(summary)


def test_the_text_names_what_failed() -> None:
    failed = [ended(kind=kind) for kind in ("http_500", "http_500", "timeout")]
    measured = stats(ended(token_ms=[1.5]), *failed)
    text = summary_text(summarize(measured, requested_per_s=1, num_not_sent=0, rtt_ms=None))
    assert "1 completed, 3 failed (2 http_500, 1 timeout)" in text
    assert "TTFT      1.500" in text


def test_sending_late_is_a_warning() -> None:
    on_time, late = {"p99": 4.9, "max": 30.0}, {"p99": 5.1, "max": 30.0}
    assert warnings_of(stats(), on_time, exact_output=True) == []
    (warning,) = warnings_of(stats(), late, exact_output=True)
    assert "requests were sent late (p99 5.1 ms, longest 30.0 ms)" in warning
