"""What a run amounts to: a mapping for machines, a few lines for people. Milliseconds, seconds and tokens."""

from collections.abc import Mapping
from typing import Any

from observe.figures.distribution import distribution_ms
from observe.figures.goodput import goodput_lines, goodput_summary
from observe.figures.stats import RunStats
from traces import SloTargets


def summarize(
    stats: RunStats,
    *,
    asked_per_s: float,
    num_not_sent: int,
    rtt_ms: float | None,
    num_earlier: int = 0,
    slo_targets: Mapping[str, SloTargets] | None = None,
) -> dict[str, Any]:
    """The figures of a run, ready for JSON. Rates count requests that were answered in full."""
    duration_s = stats.duration_s
    latencies = stats.log.latencies
    failed = {kind: count for kind, count in sorted(stats.kinds.items()) if kind != "ok"}
    return {
        "completed": stats.num_ok,
        "failed": failed,
        "not_sent": num_not_sent,
        "recorded_earlier": num_earlier,
        "duration_s": round(duration_s, 6),
        "request_rate_asked_per_s": round(asked_per_s, 6),
        "request_throughput_per_s": _per_second(stats.num_ok, duration_s),
        "input_tokens": stats.input_tokens,
        "output_tokens": stats.output_tokens,
        "input_throughput_tokens_per_s": _per_second(stats.input_tokens, duration_s),
        "output_throughput_tokens_per_s": _per_second(stats.output_tokens, duration_s),
        "ttft_ms": distribution_ms(latencies["ttft"]),
        "e2e_ms": distribution_ms(latencies["e2e"]),
        "itl_ms": distribution_ms(stats.log.gaps[1]),
        "tpot_ms": distribution_ms(latencies["itl"]),
        "send_lag_ms": distribution_ms(stats.log.lag),
        "concurrency_wait_ms": distribution_ms(stats.log.line_wait),
        "network_rtt_ms": rtt_ms,
        **goodput_summary(stats.log, slo_targets or {}, duration_s),
    }


def summary_text(summary: dict[str, Any]) -> str:
    """The same for people, in a few lines."""
    failed = summary["failed"]
    shown = ", ".join(f"{count} {kind}" for kind, count in failed.items())
    lines = [
        f"{summary['completed']} completed, {sum(failed.values())} failed" + (f" ({shown})" if shown else ""),
        f"{summary['duration_s']:.1f} s, {summary['request_throughput_per_s']:.2f} requests/s, "
        f"{summary['output_throughput_tokens_per_s']:.1f} output tokens/s",
        f"{'ms':<10}{'mean':>11}{'p50':>11}{'p90':>11}{'p95':>11}{'p99':>11}{'max':>11}",
    ]
    rows = {"TTFT": "ttft_ms", "E2E": "e2e_ms", "ITL": "itl_ms", "TPOT": "tpot_ms", "send lag": "send_lag_ms"}
    rows["in line"] = "concurrency_wait_ms"
    for name, key in rows.items():
        if summary[key] is not None:
            lines.append(f"{name:<10}" + "".join(f"{value:>11.3f}" for value in summary[key].values()))
    return "\n".join([*lines, *goodput_lines(summary)])


def _per_second(count: int, duration_s: float) -> float:
    return round(count / duration_s, 6) if duration_s else 0.0
