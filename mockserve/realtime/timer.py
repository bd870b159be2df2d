"""A timer with the kernel's precision: event loops round their own up to a millisecond.

Linux offers timers as file descriptors (timerfd); a loop that waits for those wakes within tens of microseconds of
the instant, without spinning. Elsewhere there is none, and the driver makes do with loop timers.
"""

import asyncio
import ctypes
import math
import os
import sys
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
        """Call nobody."""
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
