from typing import Any

import pytest

from blis_sim.bench.serve_load import (
    MetricSelection,
    RequestFuncOutput,
    request_output_of,
    result_of,
    table,
)
from tests.observe.ended_requests import ended


def answer(
    start_s: float = 0, ttft_s: float = 0.1, gaps_s: tuple[float, ...] = (0.2, 0.3), **given: Any
) -> RequestFuncOutput:
    fields: dict[str, Any] = {
        "is_success": True,
        "error": "",
        "prompt_tokens": 10,
        "output_tokens": len(gaps_s) + 1,
        "text": "",
        "queue_s": 0.0,
        "latency_s": ttft_s + sum(gaps_s),
    }
    return RequestFuncOutput(start_s=start_s, ttft_s=ttft_s, gaps_s=gaps_s, **(fields | given))


def figures(*answers: RequestFuncOutput, limits_ms: dict[str, float] | None = None, **selection: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"metrics": ("ttft", "tpot", "itl", "e2el"), "percentiles": (50, 99.9), **selection}
    return result_of(answers, 2.0, MetricSelection(limits_ms=limits_ms or {}, **given))


def latencies_in(result: dict[str, Any]) -> list[str]:
    return [name for name in result if name.endswith("_ms")]


FAILED = answer(is_success=False, error="HTTP 500", output_tokens=0, gaps_s=(), ttft_s=0.0)


def test_a_request_ends_with_its_last_token_and_has_a_gap_between_two() -> None:
    found = request_output_of(ended(0, (10, 30, 40)))
    assert (found.is_success, found.output_tokens, found.prompt_tokens) == (True, 3, 5)
    assert [found.ttft_s, found.latency_s, *found.gaps_s] == pytest.approx([0.01, 0.04, 0.02, 0.01])
    assert found.tpot_s == pytest.approx(0.015)
    assert not request_output_of(ended(0, ())).is_success
    assert request_output_of(ended(0, (), kind="http_500")).error == ""


def test_throughput_counts_what_succeeded() -> None:
    found = figures(answer(), answer(), FAILED)
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 6)
    rates = ("request_throughput", "output_throughput", "total_token_throughput")
    assert [found[name] for name in rates] == [1, 3, 13]


def test_a_good_request_meets_all_limits() -> None:
    answers = (answer(), answer(ttft_s=0.3), answer(gaps_s=(0.9,)), FAILED)
    assert figures(*answers, limits_ms={"ttft": 100})["request_goodput"] == 1
    assert figures(*answers, limits_ms={"ttft": 100, "tpot": 250})["request_goodput"] == 0.5
    assert figures(*answers)["request_goodput"] is None


def test_latencies_are_the_selected_ones_and_one_token_has_no_tpot() -> None:
    found = figures(answer(), answer(gaps_s=()), metrics=("tpot",))
    assert latencies_in(found) == ["mean_tpot_ms", "median_tpot_ms", "std_tpot_ms", "p50_tpot_ms", "p99.9_tpot_ms"]
    assert found["mean_tpot_ms"] == pytest.approx(250)


def test_time_in_line_is_reported_where_there_is_a_line() -> None:
    metrics = ("client_queue_time", "e2el_including_client_queue")
    waited = answer(queue_s=1.0)
    assert latencies_in(figures(waited, metrics=metrics)) == []
    assert latencies_in(figures(waited, metrics=metrics, max_concurrency=1))[0] == "mean_client_queue_time_ms"
    found = figures(waited, metrics=metrics, max_concurrency=1, request_rate=3.0)
    assert found["mean_e2el_including_client_queue_ms"] == pytest.approx(1600)


def test_peaks_are_within_seconds_from_the_first_sending() -> None:
    early = answer(start_s=100.0, ttft_s=0.5, gaps_s=(0.1, 0.9))
    late = answer(start_s=101.2, ttft_s=0.1, gaps_s=(0.1,))
    found = figures(early, late)
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (3, 2)


def test_when_nothing_succeeded_the_figures_are_zero() -> None:
    found = figures(FAILED)
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (0, 0)
    assert found["mean_ttft_ms"] == 0


def test_the_table_has_the_labels_that_scripts_look_for() -> None:
    selection = MetricSelection(
        metrics=("ttft",), percentiles=(99,), limits_ms={"ttft": 1}, max_concurrency=7, request_rate=2.5
    )
    lines = table(result_of([answer()], 2.0, selection), selection).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    assert [line.split(":")[0] for line in lines[1:-1]] == [
        "Successful requests", "Failed requests", "Maximum request concurrency", "Request rate configured (RPS)",
        "Benchmark duration (s)", "Total input tokens", "Total generated tokens", "Request throughput (req/s)",
        "Request goodput (req/s)", "Output token throughput (tok/s)", "Peak output token throughput (tok/s)",
        "Peak concurrent requests", "Total token throughput (tok/s)",
        "---------------Time to First Token----------------", "Mean TTFT (ms)", "Median TTFT (ms)", "P99 TTFT (ms)",
    ]  # fmt: skip
    assert lines[8] == "Request throughput (req/s):              0.50      "


def test_the_result_has_the_keys_of_vllm() -> None:
    result = figures(answer(), FAILED, metrics=("ttft",))
    assert list(result) == [
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "request_goodput", "output_throughput", "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls",
        "latencies", "start_times", "queue_times", "generated_texts", "errors", "max_output_tokens_per_s",
        "max_concurrent_requests", "rtfx", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p50_ttft_ms",
        "p99.9_ttft_ms",
    ]  # fmt: skip
    assert (result["output_lens"], result["errors"]) == ([3, 0], ["", "HTTP 500"])
