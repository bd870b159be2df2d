"""What the watcher saw, in quiet times and under attack."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.attack.watcher import BROKEN, OWN

Window: TypeAlias = tuple[float, float]
"""From one instant to another on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time that ended at an instant."""

    at_s: float
    ms: float
    own_ms: float = 0.0
    """How late the watcher itself was woken meanwhile: not the server's doing."""

    @property
    def window(self) -> Window:
        return self.at_s - self.ms / 1000, self.at_s

    @property
    def corrected_ms(self) -> float:
        return max(self.ms - self.own_ms, 0.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """How samples of one kind are spread."""

    count: int
    p50_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Spread":
        """Zero where there are no samples."""
        if not samples:
            return cls(0, 0.0, 0.0, 0.0)
        times = [each.corrected_ms for each in samples]
        p50, p99 = np.percentile(times, (50, 99))
        return cls(len(times), float(p50), float(p99), max(times))

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f}, worst {self.worst_ms:.1f} ms ({self.count:,} samples)"


def overlap(window: Window, others: Sequence[Window]) -> bool:
    """Whether a window has an instant in common with one of the others."""
    return any(window[0] <= end and begin <= window[1] for begin, end in others)


def read_samples(file: Path) -> dict[str, list[Sample]]:
    """Samples by kind, each with the lateness of the watcher while it was measured."""
    rows = [line.split() for line in file.read_text().splitlines()]
    found = [(row[0], float(row[1]), float(row[2])) for row in rows if len(row) == 3]
    own = np.array([(at_s, ms) for kind, at_s, ms in found if kind == OWN] or [(0.0, 0.0)])
    samples: dict[str, list[Sample]] = {}
    for kind, at_s, ms in found:
        late_ms = 0.0
        if kind not in (OWN, BROKEN):
            # A tick that was late ends a little after what it delayed.
            begin, end = np.searchsorted(own[:, 0], (at_s - ms / 1000, at_s + 0.005))
            late_ms = float(own[begin:end, 1].max(initial=0.0))
        samples.setdefault(kind, []).append(Sample(at_s, ms, late_ms))
    return samples
