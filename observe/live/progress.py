"""How far a run is, or the part of it that one process sends."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from observe.clock import Nanos
from observe.dispatch import Dispatcher
from observe.figures.stats import RunStats

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
    """How far this process is."""
    return replace(
        recent_durations(stats),
        num_sent=dispatcher.num_sent,
        num_in_flight=dispatcher.num_in_flight,
        num_in_line=dispatcher.num_in_line,
        num_ok=stats.num_ok,
        num_ended=stats.num_ended,
    )


def recent_durations(stats: RunStats) -> Progress:
    """Only the durations, of the most recent requests that they are known of."""
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
