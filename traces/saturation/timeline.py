"""The arrivals and completions of a run as one sequence of events, and a detector's verdict after each event."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Two events for each answered request, its arrival and its answer, in order of time.

    Arrivals come first where times are equal, then what has the smaller id.
    """

    at_us: Ints
    num_arrived: Ints
    """Arrivals up to and including each event."""
    num_answered: Ints
    """Answers up to and including each event."""
    latencies_ms: Floats
    """Completions in order."""

    def __len__(self) -> int:
        return len(self.at_us)


def timeline(arrived_at_us: Ints, e2e_us: Ints, ids: Sequence[str]) -> Timeline:
    """The events of answered requests: when each arrived, and how long its answer took.

    Instants go through seconds and milliseconds, as in the original's files; that may cost a microsecond.
    """
    count = len(ids)
    e2e_ms = e2e_us / 1000
    arrivals = (arrived_at_us / 1e6 * 1e6).astype(np.int64)
    answers = arrivals + (e2e_ms * 1e3).astype(np.int64)
    ranks = np.empty(count, np.int64)
    ranks[sorted(range(count), key=ids.__getitem__)] = np.arange(count)
    at_us = np.concatenate([arrivals, answers])
    is_answer = np.arange(2 * count) >= count
    order = np.lexsort((np.concatenate([ranks, ranks]), is_answer, at_us))
    answered = is_answer[order]
    return Timeline(
        at_us=at_us[order],
        num_arrived=np.cumsum(~answered),
        num_answered=np.cumsum(answered),
        latencies_ms=e2e_ms[order[answered] - count],
    )


_ARRIVALS_FOR_CONFIDENCE = 20


class Level(IntEnum):
    """How a server fares. The larger, the worse."""

    STABLE = 0
    BACKLOGGED = 1
    """Behind, but not ever more so."""
    OVERLOADED = 2


@dataclass(frozen=True, slots=True)
class Verdicts:
    """One entry per event. `signals` are the figures behind the level; the first `num_without_signals` have none."""

    levels: Ints
    scores: Floats
    confidences: Floats
    """From 0 to 1: how many requests there are to judge by."""
    signals: dict[str, Floats]
    num_without_signals: int = 0

    def __len__(self) -> int:
        return len(self.levels)


def noise_floor(num_arrived: Ints) -> Floats:
    """Return the deviation expected from chance for the number of requests."""
    return np.asarray(1 / np.sqrt(num_arrived), np.float64)


def confidence(num_arrived: Ints) -> Floats:
    """Full confidence takes 20 requests."""
    return np.minimum(1, num_arrived / _ARRIVALS_FOR_CONFIDENCE)
