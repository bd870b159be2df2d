"""Histograms as Prometheus has them, and the one of how late frames leave."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

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


LATENESS_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WINDOW_S = 10.0
WARN_ABOVE_S = 0.005
PERCENTILE = 0.99

_logger = logging.getLogger(__name__)


class Lateness:
    """A histogram of real seconds between the instant a frame was due and the instant it was handed over.

    Every `WINDOW_S` the 99th percentile of the frames since the last look is taken, and `warn` is told when it
    exceeds `WARN_ABOVE_S`. The percentile is interpolated within a bucket.
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self.histogram = Histogram(LATENESS_BUCKETS_S)
        self.p99_s = 0.0
        """Of the latest complete window."""
        self._warn = warn or _logger.warning
        self._counts_before = list(self.histogram.counts)
        self._window_ends_at: float | None = None

    def observe(self, lateness_s: float, now_s: float, num_frames: int = 1) -> None:
        """So many frames left together at `now_s` on a monotonic clock, the first of them so late."""
        self.histogram.observe(lateness_s, num_frames)
        if self._window_ends_at is None or now_s >= self._window_ends_at:
            self._next_window(now_s)

    def _next_window(self, now_s: float) -> None:
        if self._window_ends_at is not None:
            window = self.histogram.since(self._counts_before)
            self.p99_s = window.quantile(PERCENTILE)
            if self.p99_s > WARN_ABOVE_S:
                self._warn(
                    f"tokens leave late: p99 {self.p99_s * 1000:.1f} ms over the last {window.count:,} frames;"
                    " this machine cannot keep up with the load at this speed"
                )
        self._counts_before = list(self.histogram.counts)
        self._window_ends_at = now_s + WINDOW_S
