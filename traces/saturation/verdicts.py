"""What a detector says of a run: a level with its reasons, anew after every event."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from traces.saturation.timeline import Floats, Ints

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
    """What chance alone may do with so many requests."""
    return np.asarray(1 / np.sqrt(num_arrived), np.float64)


def confidence(num_arrived: Ints) -> Floats:
    """Full confidence takes 20 requests."""
    return np.minimum(1, num_arrived / _ARRIVALS_FOR_CONFIDENCE)
