"""Progress of a run in figures, and its display during the run."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain
from time import perf_counter_ns
from typing import NoReturn, Protocol

import numpy as np

from observe.clock import Nanos
from observe.dispatch import Dispatcher
from observe.errors import print_message
from observe.event_loop import command_of
from observe.figures import RunStats

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
        lag=tuple(map(int, recent.lag)),
    )


def total(parts: Iterable[Progress]) -> Progress:
    """All parts of a run together."""
    known = list(parts)
    return Progress(
        num_sent=sum(each.num_sent for each in known),
        num_in_flight=sum(each.num_in_flight for each in known),
        num_in_line=sum(each.num_in_line for each in known),
        num_ok=sum(each.num_ok for each in known),
        num_ended=sum(each.num_ended for each in known),
        ttft=tuple(chain.from_iterable(each.ttft for each in known)),
        e2e=tuple(chain.from_iterable(each.e2e for each in known)),
        lag=tuple(chain.from_iterable(each.lag for each in known)),
    )


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
        command = command_of("observe.live.screen")
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
    """Linear interpolation at rank p/100 (n - 1), in milliseconds; None of nothing."""
    if not nanos:
        return None
    ordered = sorted(nanos)
    rank = percent / 100 * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return (ordered[below] + (ordered[above] - ordered[below]) * (rank - below)) / 1e6


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
