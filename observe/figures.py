"""Figures of a run: a few numbers for each request, statistics over them, a summary, and a display during the run."""

import asyncio
import json
import os
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import compress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from blis_sim.options.latency_targets import checks_columns, checks_in
from blis_sim.options.printing import BLIS
from blis_sim.options.provenance import Provenance
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, flat
from observe.client import CANCELLED, HUNG_UP
from observe.errors import print_message
from observe.event_loop import Nanos, command_of
from observe.requests import Dispatcher, SentRequest
from traces import SloTargets, dump_json
from traces.goodput import goodput_of, members_of
from traces.load import Load, load_text
from traces.saturation_options import SaturationOptions

if TYPE_CHECKING:
    from blis_sim.report.figures import Panel

# Figures of a run: a few numbers for each request, statistics over them, and a summary for programs and for people.

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

    `add` only appends the numbers of a request; statistics are computed on demand. Those that failed have no output
    tokens, `lag` is from when a request was allowed to be sent until it was.
    `token_times` holds the instants of the tokens of all answered streams one after the other, `num_token_times` how
    many of them each has.
    """

    def __init__(self) -> None:
        self.slo_classes: list[str] = []
        self.tenants: list[str] = []
        self.servers: list[str] = []
        """Addresses of the servers that answered; empty where there is one."""
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
        self.tenants.append(sent.prepared.planned.tenant_id)
        if outcome.server:
            self.servers.append(outcome.server)
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
        self.tenants += other.tenants
        self.servers += other.servers
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
        return self.column("is_ok").astype(np.bool_)

    @property
    def line_wait(self) -> Ints:
        """Waiting times of the requests that waited for others to end."""
        waits = self.column("line_wait")
        return waits[waits > 0]

    @property
    def latencies(self) -> dict[str, Floats]:
        """The time to first token, between tokens (its mean) and of the whole request; NaN where unknown."""
        sent, first, last = self.column("sent"), self.column("first_chunk"), self.column("last_chunk")
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
    def gaps(self) -> tuple[Ints, Ints]:
        """Return end time and length of each gap between two tokens of a request."""
        times = self.token_times
        is_inside = np.ones(max(0, len(times) - 1), np.bool_)
        ends = np.cumsum(self.column("num_token_times"))
        # From the last token of one request to the first of the next is no gap.
        is_inside[ends[(ends > 0) & (ends < len(times))] - 1] = False
        return times[1:][is_inside], np.diff(times)[is_inside]

    def _mean_gaps(self) -> Floats:
        means = np.full(len(self), np.nan)
        if self._token_times:
            counts, num_gaps = self.column("num_token_times"), self.column("output_tokens") - 1
            ends = np.cumsum(counts)
            is_known = (counts > 0) & (num_gaps > 0)
            times = self.token_times
            spans = times[ends[is_known] - 1] - times[ends[is_known] - counts[is_known]]
            means[is_known] = spans / num_gaps[is_known]
        return means

    def column(self, name: str) -> Ints:
        """The numbers of that name of all requests."""
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
        elif not self.first_error and outcome.kind not in (CANCELLED, HUNG_UP):
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


def group_summary(log: RequestLog, names: Sequence[str], duration_s: float) -> dict[str, Any]:
    """Figures of the requests of each name, ready for JSON; `names` has one for each request of the log."""
    found = {}
    latencies, tokens, is_ok, labels = log.latencies, log.column("output_tokens"), log.is_ok, np.array(names)
    for name in dict.fromkeys(sorted(names)):
        members = labels == name
        num_ok = int(is_ok[members].sum())
        found[name] = {
            "completed": num_ok,
            "failed": int(members.sum()) - num_ok,
            "request_throughput_per_s": _per_second(num_ok, duration_s),
            "output_throughput_tokens_per_s": _per_second(int(tokens[members].sum()), duration_s),
            **{f"{kind}_ms": distribution_ms(column[members]) for kind, column in latencies.items()},
        }
    return found


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
    load: Load | None = None,
    num_not_sent: int,
    rtt_ms: float | None,
    num_earlier: int = 0,
    slo_targets: Mapping[str, SloTargets] | None = None,
) -> dict[str, Any]:
    """The figures of a run, ready for JSON. Rates count requests that were answered in full."""
    duration_s = stats.duration_s
    latencies = stats.log.latencies
    failed = {kind: count for kind, count in sorted(stats.kinds.items()) if kind not in ("ok", HUNG_UP)}
    return {
        "completed": stats.num_ok,
        "failed": failed,
        **({HUNG_UP: stats.kinds[HUNG_UP]} if stats.kinds[HUNG_UP] else {}),
        "not_sent": num_not_sent,
        "recorded_earlier": num_earlier,
        "duration_s": round(duration_s, 6),
        "request_rate_asked_per_s": round(requested_per_s, 6),
        "load": None if load is None else asdict(load),
        "request_throughput_per_s": _per_second(stats.num_ok, duration_s),
        "input_tokens": stats.input_tokens,
        "output_tokens": stats.output_tokens,
        "input_throughput_tokens_per_s": _per_second(stats.input_tokens, duration_s),
        "output_throughput_tokens_per_s": _per_second(stats.output_tokens, duration_s),
        "ttft_ms": distribution_ms(latencies["ttft"]),
        "e2e_ms": distribution_ms(latencies["e2e"]),
        "itl_ms": distribution_ms(stats.log.gaps[1]),
        "tpot_ms": distribution_ms(latencies["itl"]),
        "send_lag_ms": distribution_ms(stats.log.column("lag")),
        "concurrency_wait_ms": distribution_ms(stats.log.line_wait),
        "network_rtt_ms": rtt_ms,
        **goodput_summary(stats.log, slo_targets or {}, duration_s),
        **({"per_tenant": group_summary(stats.log, stats.log.tenants, duration_s)} if any(stats.log.tenants) else {}),
        **({"per_server": group_summary(stats.log, stats.log.servers, duration_s)} if stats.log.servers else {}),
    }


def judged_saturation(log: RequestLog, options: SaturationOptions) -> dict[str, Any]:
    """Label the requests that were answered by the detectors of the options, and write their report if it is requested.

    Empty without detectors. Raises TraceError.
    """
    if not options.names:
        return {}
    from traces.saturation import labels_of, timeline, write_report

    e2e_ns, sent = log.latencies["e2e"], log.column("sent")
    is_known = ~np.isnan(e2e_ns)
    sent_us = (sent[is_known] - (sent.min() if len(sent) else 0)) // 1000
    events = timeline(sent_us, (e2e_ns[is_known] // 1000).astype(np.int64), [str(n) for n in range(len(sent_us))])
    labels = labels_of(events, options.names, options.settings)
    if options.saturation_report is not None:
        write_report(options.saturation_report, events, options.names, options.settings, labels)
    return {"saturation": labels} if labels else {}


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
    judged = {
        name: summary[name] for name in ("saturation", "goodput_rps", "slo_attainment", "per_class") if name in summary
    }
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


_ROWS = {
    "TTFT": "ttft_ms",
    "E2E": "e2e_ms",
    "ITL": "itl_ms",
    "TPOT": "tpot_ms",
    "send lag": "send_lag_ms",
    "in line": "concurrency_wait_ms",
}


def load_report(
    summary: Mapping[str, Any], origin: Callable[[], Provenance], panels: Callable[[], Sequence["Panel"]] = tuple
) -> Report:
    """Return the answer of a run."""
    rows = [
        [name, *(f"{value:.3f}" for value in summary[key].values())]
        for name, key in _ROWS.items()
        if summary[key] is not None
    ]
    table = TextTable(("ms", "mean", *(f"p{percent}" for percent in _PERCENTS), "max"), rows)
    groups = [_group_section(kind, summary[f"per_{kind}"]) for kind in _GROUPS if f"per_{kind}" in summary]
    return Report(
        title="Load on",
        origin=origin,
        data=lambda: summary,
        rows=lambda: [_row(summary)],
        lead=lambda: _counts_lines(summary),
        sections=lambda: [*([Section(table=table)] if rows else []), *groups],
        remarks=lambda: _remarks(summary),
        panels=panels,
        texts={BLIS: lambda: f"=== Simulation Metrics ===\n{dump_json(as_blis(summary))}\n"},
    )


def _row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as a row of a table, each verdict on a percentile in columns of its own."""
    others = {name: each for name, each in summary.items() if name != "targets"}
    return {**flat(others), **checks_columns(checks_in(summary))}


_GROUPS = ("tenant", "server")


def _group_section(kind: str, groups: Mapping[str, Mapping[str, Any]]) -> Section:
    """The table of the figures by tenant or server."""
    rows = [
        [name or "-", str(each["completed"]), str(each["failed"]), f"{each['output_throughput_tokens_per_s']:.1f}"]
        + ["-" if each[f"{key}_ms"] is None else f"{each[f'{key}_ms'][figure]:.1f}" for key, figure in _SHOWN]
        for name, each in groups.items()
    ]
    heads = (f"{key.upper()} {figure}, ms" for key, figure in _SHOWN)
    return Section(f"by {kind}", TextTable((kind, "completed", "failed", "output tokens/s", *heads), rows))


_SHOWN = (("ttft", "mean"), ("ttft", "p99"), ("e2e", "mean"))


def _counts_lines(summary: Mapping[str, Any]) -> list[str]:
    failed = summary["failed"]
    shown = ", ".join(f"{count} {kind}" for kind, count in failed.items())
    hung_up = f", {summary[HUNG_UP]} hung up on purpose" if HUNG_UP in summary else ""
    return [
        f"{summary['completed']} completed, {sum(failed.values())} failed" + (f" ({shown})" if shown else "") + hung_up,
        f"{summary['duration_s']:.1f} s, {summary['request_throughput_per_s']:.2f} requests/s, "
        f"{summary['output_throughput_tokens_per_s']:.1f} output tokens/s",
    ]


def _remarks(summary: Mapping[str, Any]) -> list[str]:
    load = [] if summary["load"] is None else [load_text(Load(**summary["load"]))]
    saturation = [f"{detector} says {level}" for detector, level in summary.get("saturation", {}).items()]
    return [*load, *saturation, *goodput_lines(summary), *(each.line for each in checks_in(summary))]


def _per_second(count: int, duration_s: float) -> float:
    return round(count / duration_s, 6) if duration_s else 0.0


# Progress of a run in figures, and its display during the run.

_RECENT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Counts so far, and durations of the most recent requests."""

    num_sent: int = 0
    num_in_flight: int = 0
    num_in_line: int = 0
    num_ok: int = 0
    num_ended: int = 0
    ttft: tuple[Nanos, ...] = ()
    e2e: tuple[Nanos, ...] = ()
    lag: tuple[Nanos, ...] = ()


def progress_of(dispatcher: Dispatcher, stats: RunStats) -> Progress:
    """Return the progress of this process."""
    return replace(
        recent_durations(stats),
        num_sent=dispatcher.num_sent,
        num_in_flight=dispatcher.num_in_flight,
        num_in_line=dispatcher.num_in_line,
        num_ok=stats.num_ok,
        num_ended=stats.num_ended,
    )


def recent_durations(stats: RunStats) -> Progress:
    """Return the durations alone, of the most recent requests for which they are known."""
    recent = stats.log.recent(_RECENT)
    ttft, e2e = (recent.latencies[name] for name in ("ttft", "e2e"))
    return Progress(
        ttft=tuple(map(int, ttft[~np.isnan(ttft)])),
        e2e=tuple(map(int, e2e[~np.isnan(e2e)])),
        lag=tuple(map(int, recent.column("lag"))),
    )


def total(parts: Iterable[Progress]) -> Progress:
    """All parts of a run together."""
    known = [Progress(), *parts]
    columns = {each.name: [getattr(part, each.name) for part in known] for each in fields(Progress)}
    return Progress(**{name: sum(column[1:], column[0]) for name, column in columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run at one moment. Latencies are of the most recent requests, None before the first."""

    elapsed_s: float
    planned: int
    sent: int
    in_flight: int
    in_line: int
    finished: int
    errors: int
    requested_per_s: float
    sent_per_s: float
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p99_ms: float | None = None
    lag_p99_ms: float | None = None


def snapshot_of(progress: Progress, *, elapsed_s: float, num_planned: int, requested_per_s: float) -> Snapshot:
    """The state of this run, now."""
    return Snapshot(
        elapsed_s=elapsed_s,
        planned=num_planned,
        sent=progress.num_sent,
        in_flight=progress.num_in_flight,
        in_line=progress.num_in_line,
        finished=progress.num_ok,
        errors=progress.num_ended - progress.num_ok,
        requested_per_s=requested_per_s,
        sent_per_s=progress.num_sent / elapsed_s if elapsed_s > 0 else 0.0,
        ttft_p50_ms=percentile_ms(progress.ttft, 50),
        ttft_p99_ms=percentile_ms(progress.ttft, 99),
        e2e_p50_ms=percentile_ms(progress.e2e, 50),
        e2e_p99_ms=percentile_ms(progress.e2e, 99),
        lag_p99_ms=percentile_ms(progress.lag, 99),
    )


class View(Protocol):
    """A display of snapshots, which takes one every `period_s` seconds."""

    period_s: float

    def show(self, snapshot: Snapshot) -> None:
        """Show this moment."""
        ...

    def close(self) -> None:
        """Show no more; what is written to the terminal afterwards comes below."""
        ...


def open_view() -> View:
    """A live table when standard error is a terminal that can draw, else a line of text now and then."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return TerminalView()
    return LogView()


async def keep_showing(
    view: View,
    progress: Callable[[], Progress],
    num_planned: Callable[[], int],
    *,
    origin: Nanos,
    requested_per_s: float,
) -> NoReturn:
    """Show a run that begins at `origin`, again and again, until this is cancelled."""
    while True:
        await asyncio.sleep(view.period_s)
        elapsed_s = (perf_counter_ns() - origin) / 1e9
        view.show(
            snapshot_of(progress(), elapsed_s=elapsed_s, num_planned=num_planned(), requested_per_s=requested_per_s)
        )


class LogView:
    """A line of text every five seconds."""

    period_s = 5.0

    def show(self, snapshot: Snapshot) -> None:
        """Write one line."""
        print_message(snapshot_line(snapshot))

    def close(self) -> None:
        """Do nothing: no file is open."""


class TerminalView:
    """A table that is redrawn in place, by a process of its own.

    Drawing takes milliseconds, during which no answer could be stamped.
    """

    period_s = 0.5

    def __init__(self) -> None:
        # A session of its own, so that Ctrl-C does not reach it: the table stays until the run has stopped.
        command = command_of("observe.live_screen")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.set_blocking(self._pipe, False)

    def show(self, snapshot: Snapshot) -> None:
        """Hand the snapshot over; one that the other side has no room for is left out."""
        try:
            os.write(self._pipe, json.dumps(asdict(snapshot)).encode() + b"\n")
        except OSError:
            return

    def close(self) -> None:
        """Wait for the last drawing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def percentile_ms(nanos: Collection[int], percent: float) -> float | None:
    """A percentile in milliseconds; None of nothing."""
    return float(np.percentile(list(nanos), percent)) / 1e6 if nanos else None


def snapshot_line(snapshot: Snapshot) -> str:
    """The snapshot as one line of text."""
    return (
        f"{snapshot.elapsed_s:.0f} s: sent {snapshot.sent}/{snapshot.planned}"
        f" at {snapshot.sent_per_s:.2f} of {snapshot.requested_per_s:.2f}/s,"
        f" in flight {snapshot.in_flight}, in line {snapshot.in_line},"
        f" finished {snapshot.finished}, errors {snapshot.errors},"
        f" TTFT p50/p99 {milliseconds(snapshot.ttft_p50_ms)}/{milliseconds(snapshot.ttft_p99_ms)} ms,"
        f" E2E p50/p99 {milliseconds(snapshot.e2e_p50_ms)}/{milliseconds(snapshot.e2e_p99_ms)} ms,"
        f" send lag p99 {milliseconds(snapshot.lag_p99_ms)} ms"
    )


def milliseconds(value: float | None) -> str:
    """A latency to show, a dash when there is none yet."""
    return "-" if value is None else f"{value:.1f}"
