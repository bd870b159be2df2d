"""The table that a benchmark prints, with the labels of vLLM's, which scripts look for."""

from collections.abc import Iterator, Mapping
from math import inf

from blis_sim.bench.serve.figures import Asked, Figures

_WIDTH = 50
_METRICS: Mapping[str, tuple[str, str]] = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
}
"""Metric to its short name and its heading, in the order of the table."""


def table(figures: Figures, asked: Asked) -> str:
    """The whole table, with a newline at the end."""
    return "\n".join([" Serving Benchmark Result ".center(_WIDTH, "="), *_lines(figures, asked), "=" * _WIDTH, ""])


def _lines(figures: Figures, asked: Asked) -> Iterator[str]:
    yield _count("Successful requests:", figures.completed)
    yield _count("Failed requests:", figures.failed)
    if asked.max_concurrency is not None:
        yield _count("Maximum request concurrency:", asked.max_concurrency)
    if asked.request_rate != inf:
        yield _number("Request rate configured (RPS):", asked.request_rate)
    yield _number("Benchmark duration (s):", figures.duration)
    yield _count("Total input tokens:", figures.total_input_tokens)
    yield _count("Total generated tokens:", figures.total_output_tokens)
    yield _number("Request throughput (req/s):", figures.request_throughput)
    if figures.request_goodput is not None:
        yield _number("Request goodput (req/s):", figures.request_goodput)
    yield _number("Output token throughput (tok/s):", figures.output_throughput)
    yield _number("Peak output token throughput (tok/s):", figures.max_output_tokens_per_s)
    yield _number("Peak concurrent requests:", figures.max_concurrent_requests)
    yield _number("Total token throughput (tok/s):", figures.total_token_throughput)
    for metric, (name, heading) in _METRICS.items():
        each = figures.latencies.get(metric)
        if each is not None:
            yield heading.center(_WIDTH, "-")
            yield _number(f"Mean {name} (ms):", each.mean_ms)
            yield _number(f"Median {name} (ms):", each.median_ms)
            for word, value in each.percentiles_ms.items():
                yield _number(f"P{word} {name} (ms):", value)


def _count(label: str, value: int) -> str:
    return f"{label:<40} {value:<10}"


def _number(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}"
