"""Samples of the watcher, in quiet times and under attack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workshop.attack.watcher import DISK, GAP, HEALTH, OWN, RAN, TICK_S, WAITED

Window: TypeAlias = tuple[float, float]
"""From one instant to another on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time that ended at an instant."""

    at_s: float
    ms: float
    load_ms: float = 0.0
    """Time added by the machine's load, which is not the server's doing."""

    @property
    def window(self) -> Window:
        return self.at_s - self.ms / 1000, self.at_s

    @property
    def corrected_ms(self) -> float:
        return max(self.ms - self.load_ms, 0.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of the samples of one kind."""

    count: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    worst_measured_ms: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Spread":
        """Zero where there are no samples."""
        if not samples:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        times = [each.corrected_ms for each in samples]
        p50, p99 = np.percentile(times, (50, 99))
        return cls(len(times), float(p50), float(p99), max(times), max(each.ms for each in samples))

    def __str__(self) -> str:
        return (
            f"p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f}, worst {self.worst_ms:.1f} ms "
            f"({self.count:,} samples, worst as measured {self.worst_measured_ms:.1f} ms)"
        )


def overlap(window: Window, others: Sequence[Window]) -> bool:
    """Whether a window has an instant in common with one of the others."""
    return any(window[0] <= end and begin <= window[1] for begin, end in others)


def doing(samples: Mapping[str, Sequence[Sample]], window: Window) -> str:
    """Samples of the server's main thread in a window; empty where it was not watched."""
    if not samples.get(RAN):
        return ""
    ran, waited, disk = (_growth_ms(samples[kind], window) for kind in (RAN, WAITED, DISK))
    return f"the main thread ran {ran:.0f}, waited {waited:.0f} for a processor and {disk:.0f} for a disk"


def _growth_ms(sums: Sequence[Sample], window: Window) -> float:
    """Return the growth of cumulative sums in a window, up to the first sample after it."""
    instants = [each.at_s for each in sums]
    first, last = np.minimum(np.searchsorted(instants, window), len(sums) - 1)
    return float(sums[last].ms - sums[max(first - 1, 0)].ms)


def read_samples(file: Path, as_measured: bool) -> dict[str, list[Sample]]:
    """Samples by kind, each with what the machine's load has added to it unless they count `as_measured`."""
    rows = [line.split() for line in file.read_text().splitlines()]
    found = [(row[0], float(row[1]), float(row[2])) for row in rows if len(row) == 3]
    own, waited = (
        np.array([(at_s, ms) for kind, at_s, ms in found if kind == name] or [(0.0, 0.0)]) for name in (OWN, WAITED)
    )
    samples: dict[str, list[Sample]] = {}
    for kind, at_s, ms in found:
        load_ms = 0.0 if as_measured or kind not in (GAP, HEALTH) else _load_ms(at_s - ms / 1000, at_s, own, waited)
        samples.setdefault(kind, []).append(Sample(at_s, ms, load_ms))
    return samples


def _load_ms(begin_s: float, end_s: float, own: npt.NDArray[np.float64], waited: npt.NDArray[np.float64]) -> float:
    """Return the time that the watcher or the server waited for a processor between two instants, whichever was
    longer."""
    # A tick that was late ends a little after what it delayed.
    begin, end = np.searchsorted(own[:, 0], (begin_s, end_s + TICK_S / 2))
    watcher_ms = float(own[begin:end, 1].max(initial=0.0))
    # The kernel counts a wait when it ends, and a tick comes a little later.
    first, last = np.minimum(np.searchsorted(waited[:, 0], (begin_s, end_s)), len(waited) - 1)
    server_ms = waited[last, 1] - waited[first, 1]
    return max(watcher_ms, float(server_ms))
