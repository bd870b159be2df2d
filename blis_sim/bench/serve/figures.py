"""Outcomes of the requests of a benchmark, and figures under the names of vLLM's result files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from observe.clock import Nanos
from observe.dispatch import SentRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFuncOutput:
    """One request. The answer ends with its last token; gaps are those between events that carry tokens.

    A request is a success when it was answered in full and at least one token came. `queue_s` is the time in
    the client's queue, which no latency includes.
    """

    is_success: bool
    error: str
    prompt_tokens: int
    output_tokens: int
    text: str
    start_s: float
    """Send time, on a clock without a meaningful zero."""
    ttft_s: float
    gaps_s: Sequence[float]
    latency_s: float
    queue_s: float

    @property
    def tpot_s(self) -> float:
        """The time per output token behind the first one, 0 with fewer than two."""
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


def request_output_of(sent: SentRequest) -> RequestFuncOutput:
    """The answer to a request that has ended."""
    outcome = sent.outcome
    times = outcome.token_times
    is_ok = outcome.status == "ok"
    counted = outcome.reply.prompt_tokens
    planned = sent.prepared.planned
    error = outcome.error_message if not is_ok else "" if times else "no event of the answer carried a token"
    return RequestFuncOutput(
        is_success=is_ok and bool(times),
        error=error,
        prompt_tokens=planned.prefix_tokens + planned.input_tokens if counted is None else counted,
        output_tokens=outcome.output_tokens if is_ok and times else 0,
        text=outcome.reply.content,
        start_s=outcome.sent / 1e9,
        ttft_s=_seconds(outcome.sent, times[0]) if times else 0.0,
        gaps_s=[_seconds(earlier, later) for earlier, later in pairwise(times)],
        latency_s=_seconds(outcome.sent, times[-1]) if times else 0.0,
        queue_s=_seconds(sent.due, outcome.sent),
    )


def _seconds(start: Nanos, end: Nanos) -> float:
    return (end - start) / 1e9


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSelection:
    """The contents of a report: latencies, percentiles, and the limits in milliseconds of a good request."""

    metrics: Sequence[str]
    percentiles: Sequence[float]
    limits_ms: Mapping[str, float]
    max_concurrency: int | None = None
    request_rate: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """Mean, median, standard deviation and percentiles in milliseconds; all 0 of nothing."""

    mean_ms: float
    median_ms: float
    std_ms: float
    percentiles_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMetrics:
    """The figures of a run. `request_goodput` is None without limits; latencies are by metric."""

    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: Mapping[str, LatencyStats]


def calculate_metrics(
    answers: Sequence[RequestFuncOutput], duration_s: float, selection: MetricSelection
) -> BenchmarkMetrics:
    """The figures of a run of this duration."""
    good = [each for each in answers if each.is_success]
    num_input, num_output = sum(each.prompt_tokens for each in good), sum(each.output_tokens for each in good)
    values = _latencies_s(good, selection)
    peak_tokens, peak_requests = _peaks(good)
    return BenchmarkMetrics(
        duration=duration_s,
        completed=len(good),
        failed=len(answers) - len(good),
        total_input_tokens=num_input,
        total_output_tokens=num_output,
        request_throughput=len(good) / duration_s,
        request_goodput=_num_within(good, selection.limits_ms) / duration_s if selection.limits_ms else None,
        output_throughput=num_output / duration_s,
        total_token_throughput=(num_input + num_output) / duration_s,
        max_output_tokens_per_s=peak_tokens,
        max_concurrent_requests=peak_requests,
        latencies={
            name: latency_stats(values[name], selection.percentiles) for name in selection.metrics if name in values
        },
    )


def as_result(figures: BenchmarkMetrics, answers: Sequence[RequestFuncOutput]) -> dict[str, Any]:
    """The figures as vLLM's result file has them, with those of each request."""
    result: dict[str, Any] = {
        "duration": figures.duration,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
        "input_lens": [each.prompt_tokens for each in answers],
        "output_lens": [each.output_tokens for each in answers],
        "ttfts": [each.ttft_s for each in answers],
        "itls": [list(each.gaps_s) for each in answers],
        "latencies": [each.latency_s for each in answers],
        "start_times": [each.start_s for each in answers],
        "queue_times": [each.queue_s for each in answers],
        "generated_texts": [each.text for each in answers],
        "errors": [each.error for each in answers],
        "max_output_tokens_per_s": figures.max_output_tokens_per_s,
        "max_concurrent_requests": figures.max_concurrent_requests,
        "rtfx": 0.0,
    }
    for name, each in figures.latencies.items():
        result |= {f"mean_{name}_ms": each.mean_ms, f"median_{name}_ms": each.median_ms, f"std_{name}_ms": each.std_ms}
        result |= {f"p{word}_{name}_ms": value for word, value in each.percentiles_ms.items()}
    return result


def latency_stats(values_s: Sequence[float], percentiles: Sequence[float]) -> LatencyStats:
    """The figures of a sample in seconds."""
    values_ms: Floats = np.array(values_s if len(values_s) else [0.0], np.float64) * 1000
    return LatencyStats(
        mean_ms=float(values_ms.mean()),
        median_ms=float(np.median(values_ms)),
        std_ms=float(values_ms.std()),
        percentiles_ms={_word(percent): float(np.percentile(values_ms, percent)) for percent in percentiles},
    )


def _word(percent: float) -> str:
    return str(int(percent)) if percent == int(percent) else str(percent)


def _latencies_s(good: Sequence[RequestFuncOutput], selection: MetricSelection) -> dict[str, list[float]]:
    """Samples by metric. Queueing times in the client are included only with a limit of requests in flight."""
    values = {
        "ttft": [each.ttft_s for each in good],
        "tpot": [each.tpot_s for each in good if each.output_tokens > 1],
        "itl": [gap for each in good for gap in each.gaps_s],
        "e2el": [each.latency_s for each in good],
    }
    if selection.max_concurrency is not None:
        values["client_queue_time"] = [each.queue_s for each in good]
        if selection.request_rate != inf:
            values["e2el_including_client_queue"] = [each.latency_s + each.queue_s for each in good]
    return values


def _num_within(good: Sequence[RequestFuncOutput], limits_ms: Mapping[str, float]) -> int:
    """Return the number of requests within all limits."""
    return sum(
        all(
            1000 * {"ttft": each.ttft_s, "tpot": each.tpot_s, "e2el": each.latency_s}[name] <= limit_ms
            for name, limit_ms in limits_ms.items()
        )
        for each in good
    )


def _peaks(good: Sequence[RequestFuncOutput]) -> tuple[float, int]:
    """The most events with tokens in a second, and the most requests that were under way within one.

    Seconds are counted from the first sending.
    """
    if not good:
        return 0.0, 0
    origin = min(each.start_s for each in good)
    first_s = np.array([each.start_s - origin for each in good])
    last_s = first_s + np.array([each.latency_s for each in good])
    num_seconds = int(last_s.max()) + 2
    came = np.concatenate(
        [start + np.cumsum([each.ttft_s, *each.gaps_s]) for start, each in zip(first_s, good, strict=True)]
    )
    changes = np.bincount(first_s.astype(int), minlength=num_seconds) - np.bincount(
        last_s.astype(int) + 1, minlength=num_seconds
    )
    return float(np.bincount(came.astype(int)).max()), int(np.cumsum(changes).max())
