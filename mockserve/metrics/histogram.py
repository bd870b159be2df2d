"""A Prometheus histogram that costs one bisection per observation, or per group of equal ones."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts of observations per bucket. `bounds` ascend; an observation equal to a bound belongs to its bucket."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`times` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Observe what another with the same bounds has observed, too."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total

    def since(self, counts_before: Sequence[int]) -> "Histogram":
        """What came after `counts` read `counts_before`; its total is not kept."""
        window = Histogram(self.bounds)
        window.counts = [now - before for now, before in zip(self.counts, counts_before, strict=True)]
        window.count = sum(window.counts)
        return window

    def quantile(self, fraction: float) -> float:
        """The value below which `fraction` of the observations lie, interpolated; the last bound beyond all bounds.

        0 when there are none.
        """
        wanted = fraction * self.count
        seen = 0
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and seen + count >= wanted:
                return lower + (bound - lower) * (wanted - seen) / count
            seen += count
            lower = bound
        return lower if self.count else 0.0


def cumulative(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """Buckets as the exposition format wants them: each counts all observations up to its bound."""
    seen = 0
    buckets = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        buckets.append((floatToGoString(bound), float(seen)))  # type: ignore[no-untyped-call]
    return buckets
