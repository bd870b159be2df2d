"""Figures of a run: a few numbers for each request, statistics over them, and a summary for programs and for people."""

from array import array
from collections import Counter
from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from observe.clock import Nanos
from observe.dispatch import SentRequest
from traces import SloTargets, dump_json
from traces.goodput import goodput_of, members_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FIELDS = (
    "is_ok",
    "sent",
    "ended",
    "output_tokens",
    "first_chunk",
    "last_chunk",
    "lag",
    "line_wait",
    "num_token_times",
)
_PLACES = {name: place for place, name in enumerate(_FIELDS)}


class RequestLog:
    """One entry per request, in the order in which they ended. Instants and durations in nanoseconds.

    `add` only appends the numbers of a request; statistics are computed on demand.
    `token_times` holds the instants of the tokens of all answered streams one after the other, `num_token_times` how
    many of them each has.
    """

    def __init__(self) -> None:
        self.slo_classes: list[str] = []
        self._numbers = array("q")
        self._token_times = array("q")

    def __len__(self) -> int:
        return len(self.slo_classes)

    def add(self, sent: SentRequest) -> None:
        """Take in a request that has ended. Latencies are known of those that were answered in full."""
        outcome, token_times = sent.outcome, self._token_times
        reply, at = outcome.reply, outcome.sent
        first = last = output_tokens = 0
        num_before = len(token_times)
        if outcome.status == "ok":
            output_tokens = outcome.output_tokens
            times = reply.chunk_times
            if times:
                first, last = reply.first_token, times[-1]
                if reply.streaming:
                    token_times.extend(compress(times, reply.carries_tokens))
        self.slo_classes.append(sent.prepared.planned.slo_class)
        self._numbers.extend(
            (
                outcome.status == "ok",
                at,
                outcome.ended,
                output_tokens,
                first,
                last,
                at - sent.allowed,
                sent.allowed - sent.due,
                len(token_times) - num_before,
            )
        )

    def merge(self, other: "RequestLog") -> None:
        """Take over the requests of another log."""
        self.slo_classes += other.slo_classes
        self._numbers.extend(other._numbers)
        self._token_times.extend(other._token_times)

    def recent(self, most: int) -> "RequestLog":
        """The requests that ended last, at most so many, without the times of their tokens."""
        log = RequestLog()
        log.slo_classes = self.slo_classes[-most:]
        log._numbers = self._numbers[-most * len(_FIELDS) :]
        return log

    @property
    def is_ok(self) -> npt.NDArray[np.bool_]:
        """Return which requests were answered in full."""
        return self._column("is_ok").astype(np.bool_)

    @property
    def sent(self) -> Ints:
        """Send time of each request."""
        return self._column("sent")

    @property
    def ended(self) -> Ints:
        """End time of each request, successful or not."""
        return self._column("ended")

    @property
    def output_tokens(self) -> Ints:
        """Tokens of each answer, 0 of those that failed."""
        return self._column("output_tokens")

    @property
    def lag(self) -> Ints:
        """Delay from when each request was allowed to be sent until it was sent."""
        return self._column("lag")

    @property
    def line_wait(self) -> Ints:
        """Waiting times of the requests that waited for others to end."""
        waits = self._column("line_wait")
        return waits[waits > 0]

    @property
    def latencies(self) -> dict[str, Floats]:
        """The time to first token, between tokens (its mean) and of the whole request; NaN where unknown."""
        sent, first, last = self.sent, self._column("first_chunk"), self._column("last_chunk")
        return {
            "ttft": np.where(first != 0, first - sent, np.nan),
            "itl": self._mean_gaps(),
            "e2e": np.where(last != 0, last - sent, np.nan),
        }

    @property
    def token_times(self) -> Ints:
        """Arrival times of tokens, request by request."""
        return np.array(self._token_times, np.int64)

    @property
    def num_token_times(self) -> Ints:
        """Number of entries in `token_times` of each request."""
        return self._column("num_token_times")

    @property
    def gaps(self) -> tuple[Ints, Ints]:
        """Return end time and length of each gap between two tokens of a request."""
        times = self.token_times
        is_inside = np.ones(max(0, len(times) - 1), np.bool_)
        ends = np.cumsum(self.num_token_times)
        # From the last token of one request to the first of the next is no gap.
        is_inside[ends[(ends > 0) & (ends < len(times))] - 1] = False
        return times[1:][is_inside], np.diff(times)[is_inside]

    def _mean_gaps(self) -> Floats:
        means = np.full(len(self), np.nan)
        if self._token_times:
            counts, num_gaps = self.num_token_times, self.output_tokens - 1
            ends = np.cumsum(counts)
            is_known = (counts > 0) & (num_gaps > 0)
            times = self.token_times
            spans = times[ends[is_known] - 1] - times[ends[is_known] - counts[is_known]]
            means[is_known] = spans / num_gaps[is_known]
        return means

    def _column(self, name: str) -> Ints:
        return np.array(self._numbers, np.int64).reshape(-1, len(_FIELDS))[:, _PLACES[name]]


class RunStats:
    """The requests that have ended, in `log`, and counts of their outcomes.

    `num_uncounted` requests had answers without a token count, `num_other_length` had outputs of another length
    than planned.
    """

    def __init__(self) -> None:
        self.log = RequestLog()
        self.kinds: Counter[str] = Counter()
        self.first_error = ""
        self.input_tokens = 0
        self.output_tokens = 0
        self.num_uncounted = 0
        self.num_other_length = 0
        self.first_sent: Nanos = 0
        self.last_ended: Nanos = 0

    @property
    def duration_s(self) -> float:
        """Seconds from the first sending to the last end."""
        return max(0, self.last_ended - self.first_sent) / 1e9 if self.first_sent else 0.0

    @property
    def num_ended(self) -> int:
        """All requests that have ended."""
        return self.kinds.total()

    @property
    def num_ok(self) -> int:
        """Requests with a complete reply."""
        return self.kinds["ok"]

    def merge(self, other: "RunStats") -> None:
        """Take over what another process has measured in the same run."""
        self.log.merge(other.log)
        self.kinds += other.kinds
        self.first_error = self.first_error or other.first_error
        self.first_sent = min((at for at in (self.first_sent, other.first_sent) if at), default=0)
        self.last_ended = max(self.last_ended, other.last_ended)
        for name in ("input_tokens", "output_tokens", "num_uncounted", "num_other_length"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add(self, sent: SentRequest) -> None:
        """Take in a request that has ended."""
        outcome = sent.outcome
        self.log.add(sent)
        self.kinds[outcome.kind] += 1
        if outcome.ended > self.last_ended:
            self.last_ended = outcome.ended
        if outcome.sent < self.first_sent or not self.first_sent:
            self.first_sent = outcome.sent
        if outcome.status == "ok":
            self._add_tokens(sent)
        elif not self.first_error and outcome.kind != "cancelled":
            self.first_error = outcome.error_message

    def _add_tokens(self, sent: SentRequest) -> None:
        reply, output_tokens = sent.outcome.reply, sent.outcome.output_tokens
        self.input_tokens += reply.prompt_tokens or 0
        self.output_tokens += output_tokens
        if reply.completion_tokens is None:
            self.num_uncounted += 1
        elif output_tokens != sent.prepared.planned.output_tokens:
            self.num_other_length += 1


_PERCENTS = (50, 90, 95, 99)


def distribution_ms(nanos: npt.ArrayLike) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds; unknown values (NaN) are left out, and None is of nothing."""
    values = np.asarray(nanos)
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)]
    if not values.size:
        return None
    figures = [values.mean(), *np.percentile(values, _PERCENTS), values.max()]
    names = ("mean", *(f"p{percent}" for percent in _PERCENTS), "max")
    return {name: round(float(figure) / 1e6, 6) for name, figure in zip(names, figures, strict=True)}


def goodput_summary(log: RequestLog, targets: Mapping[str, SloTargets], duration_s: float) -> dict[str, Any]:
    """Goodput over all classes with targets and for each of them, ready for JSON; empty without targets.

    A request that failed met no target. A limit for ITL leaves requests alone that have none: those with one token, or
    that were not streamed.
    """
    if not targets:
        return {}
    latencies = log.latencies
    values_us = {name: column / 1000 for name, column in latencies.items()}
    is_answered = ~np.isnan(latencies["e2e"])
    found = goodput_of(values_us, log.slo_classes, is_answered, targets, duration_s)
    per_class = {}
    for name, each in found.classes.items():
        members = members_of(name, log.slo_classes)
        per_class[name] = {
            "count": each.count,
            "goodput_rps": round(each.attained.per_s, 6),
            "slo_attainment": round(each.attained.share, 6),
            "slo_attainment_by_dim": {limit: round(met, 6) for limit, met in each.attained.by_limit.items()},
            **{f"{kind}_ms": distribution_ms(column[members]) for kind, column in latencies.items()},
        }
    return {"goodput_rps": round(found.per_s, 6), "slo_attainment": round(found.share, 6), "per_class": per_class}


def goodput_lines(summary: Mapping[str, Any]) -> list[str]:
    """Goodput as text: a line for all requests, and one for each class."""
    if "goodput_rps" not in summary:
        return []
    lines = [f"goodput {summary['goodput_rps']:.2f} requests/s, {summary['slo_attainment']:.1%} of all"]
    for name, each in summary["per_class"].items():
        limits = "".join(f", {limit.upper()} {met:.1%}" for limit, met in each["slo_attainment_by_dim"].items())
        lines.append(f"  {name}: {each['slo_attainment']:.1%} of {each['count']}{limits}")
    return lines


def summarize(
    stats: RunStats,
    *,
    requested_per_s: float,
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
        "request_rate_asked_per_s": round(requested_per_s, 6),
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


_BLIS_COUNTS = (
    "still_queued", "still_running", "injected_requests", "total_input_tokens", "total_output_tokens",
    "vllm_estimated_duration_s",
)  # fmt: skip
"""Figures of a simulation, which are 0 in what BLIS prints of a recording."""


def as_blis(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run under the names that BLIS prints."""
    latencies = {
        f"{kind}_{figure}_ms": 0 if summary[f"{kind}_ms"] is None else summary[f"{kind}_ms"][figure]
        for kind in ("e2e", "ttft", "itl")
        for figure in ("mean", "p90", "p95", "p99")
    }
    judged = {name: summary[name] for name in ("goodput_rps", "slo_attainment", "per_class") if name in summary}
    return {
        "instance_id": "",
        "completed_requests": summary["completed"],
        **dict.fromkeys(_BLIS_COUNTS, 0),
        "responses_per_sec": summary["request_throughput_per_s"],
        "tokens_per_sec": summary["output_throughput_tokens_per_s"],
        **latencies,
        "scheduling_delay_p99_ms": 0,
        "preemption_count": 0,
        "dropped_unservable": 0,
        "length_capped_requests": 0,
        "timed_out_requests": 0,
        **judged,
    }


def printed_summary(summary: Mapping[str, Any], form: str) -> str:
    """The figures of a run as standard output gets them."""
    if form == "blis":
        return f"=== Simulation Metrics ===\n{dump_json(as_blis(summary))}\n"
    return dump_json(summary) + "\n"


def summary_text(summary: dict[str, Any]) -> str:
    """The summary as text, in a few lines."""
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
