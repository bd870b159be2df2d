"""Wakes the driver at one instant at a time, as close to it as the platform lets it, without spinning."""

import asyncio
import math
import time
from collections.abc import Callable

from mockserve.realtime.timer import PreciseTimer, precise_timer

TIMER_SLACK_S = 0.0015
"""Loop timers are a millisecond coarse: wake this much early and spin the rest, serving I/O meanwhile."""

PRECISE_TIMER_SLACK_S = 0.00005
"""Less than this is not worth a timer where timers are precise."""

SPACING_S = 0.0002
"""The least between two wakes that are ahead: with many streams on clocks of their own, one wake serves several."""


class Alarm:
    """Calls `wake` once for each time it is set: hardly after the instant if the machine keeps up, but maybe before.

    Belongs to the event loop that runs when it is first set.
    """

    def __init__(self, wake: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self._wake = wake
        self._monotonic = monotonic
        self._handle: asyncio.Handle | PreciseTimer | None = None
        self._timer: PreciseTimer | None = None
        self._has_looked_for_timer = False
        self._rang_at_s = -math.inf

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def set(self, at_s: float) -> None:
        """Wake when the monotonic clock reads `at_s`, instead of when was said before.

        By a precise timer, or one that is early for sure; or in the next turn of the loop when that is too coarse.
        """
        self.cancel()
        loop = asyncio.get_running_loop()
        if not self._has_looked_for_timer:
            self._has_looked_for_timer = True
            # It reads the system's clock, so it is of no use with another one.
            self._timer = precise_timer(loop) if self._monotonic is time.monotonic else None
        now_s = self._monotonic()
        if at_s > now_s:
            at_s = max(at_s, self._rang_at_s + SPACING_S)
        left_s = at_s - now_s
        if self._timer is not None and left_s > PRECISE_TIMER_SLACK_S:
            self._handle = self._timer.start(at_s, self._ring)
        elif self._timer is None and left_s > 2 * TIMER_SLACK_S:
            self._handle = loop.call_later(left_s - TIMER_SLACK_S, self._ring)
        else:
            self._handle = loop.call_soon(self._ring)

    def cancel(self) -> None:
        """Do not wake."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Never wake again."""
        self.cancel()
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _ring(self) -> None:
        self._handle = None
        self._rang_at_s = self._monotonic()
        self._wake()
