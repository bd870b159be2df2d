"""How late frames leave: every wake-up is measured, and the server says so when it cannot keep up."""

import logging
from collections.abc import Callable

from mockserve.metrics.histogram import Histogram

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
