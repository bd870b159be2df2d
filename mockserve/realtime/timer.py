"""Waking the driver at one instant, with the precision of the kernel: event loops round theirs to milliseconds.

Linux has timers as file descriptors (timerfd); a loop that waits for one wakes within tens of microseconds of the
instant, without spinning. Elsewhere the driver makes do with timers of the loop.
"""

import asyncio
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_NONBLOCKING = os.O_NONBLOCK
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("first", _TimeSpec))


class PreciseTimer:
    """Calls back once, at or just after an instant of the monotonic clock. One instant at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where the platform has no such timers."""
        if not sys.platform.startswith("linux"):
            raise OSError(f"no timer descriptors on {sys.platform}")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCKING | _CLOSE_ON_EXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = loop
        self._callback: Callable[[], None] | None = None
        loop.add_reader(self._fd, self._fired)

    def start(self, at_s: float, callback: Callable[[], None]) -> "PreciseTimer":
        """Call `callback` when the monotonic clock reads `at_s`, instead of what was started before."""
        self._callback = callback
        # Rounded up: the timer must not fire before its instant, and an instant of zero would stop it.
        nanoseconds = max(1, math.ceil(at_s * 1e9))
        self._set(*divmod(nanoseconds, 1_000_000_000))
        return self

    def cancel(self) -> None:
        """Call nothing any more."""
        self._callback = None
        self._set(0, 0)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _set(self, seconds: int, nanoseconds: int) -> None:
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # started anew in the meantime
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def precise_timer(loop: asyncio.AbstractEventLoop) -> PreciseTimer | None:
    """A precise timer, or None where there is none."""
    try:
        return PreciseTimer(loop)
    except (OSError, AttributeError, NotImplementedError):
        return None


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
