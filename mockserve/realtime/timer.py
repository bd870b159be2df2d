"""The clock and timer of the real-time driver, and the time slices for processing a backlog."""

import asyncio
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros

FOREVER: Micros = 2**62
"""Later than any event."""


def unix_time() -> int:
    """Seconds since 1970, for the `created` fields."""
    return int(time.time())


class PacedClock:
    """Maps simulated instants to readings of the monotonic clock, at a constant rate. Readings are in seconds."""

    def __init__(self, us_per_s: float, monotonic: Callable[[], float], origin_s: float) -> None:
        """`us_per_s` simulated microseconds pass in a real second. `origin_s` is the reading at the simulated instant
        0."""
        self._us_per_s = us_per_s
        self._monotonic = monotonic
        self._origin_s = origin_s

    def now(self) -> Micros:
        """Return the present instant. It is also the latest whose events may be processed now, `due_until`."""
        return int((self._monotonic() - self._origin_s) * self._us_per_s)

    due_until = now

    def instant_at(self, reading_s: float) -> Micros:
        """Return the instant at which the monotonic clock reads `reading_s`."""
        return int((reading_s - self._origin_s) * self._us_per_s)

    def seconds_at(self, at: Micros) -> float:
        """Return the reading at an instant, which may be in the future."""
        return self._origin_s + at / self._us_per_s


class JumpingClock:
    """A clock that jumps to the instant of each engine event and stands still in between."""

    def __init__(self, simulation: Simulation, monotonic: Callable[[], float]) -> None:
        self._simulation = simulation
        self._monotonic = monotonic

    def now(self) -> Micros:
        return self._simulation.now or 0

    def due_until(self) -> Micros:
        return FOREVER

    def instant_at(self, reading_s: float) -> Micros:
        return self.now()

    def seconds_at(self, at: Micros) -> float:
        """Return the present: every event is due at once."""
        return self._monotonic()


def clock_of(
    simulation: Simulation, speed: float, monotonic: Callable[[], float], origin_s: float | None
) -> PacedClock | JumpingClock:
    """The clock for `speed` simulated seconds per real second; infinity lets it jump.

    `origin_s` is the reading at the simulated instant 0, by default the present one.
    """
    if math.isinf(speed):
        return JumpingClock(simulation, monotonic)
    return PacedClock(speed * 1e6, monotonic, monotonic() if origin_s is None else origin_s)


MAX_ARRIVAL_WAIT_S = 0.02
"""How long after the arrival of a request the engine waits for it to be submitted."""

MAX_PENDING_ARRIVALS = 8
"""The engine waits for no request while more are being prepared: one of a flood would be late anyway."""


class PendingArrival(NamedTuple):
    """A request that has been received and not been submitted."""

    at: Micros
    """The instant that the engine does not pass."""
    number: int
    until_s: float
    """Reading of the monotonic clock up to which the engine waits."""


class PendingArrivals:
    """The requests that have been received and not been submitted."""

    def __init__(self) -> None:
        self._arrivals: list[PendingArrival] = []
        """A heap, in which removed arrivals stay until they are the first."""
        self.present: set[int] = set()
        """Numbers of the arrivals that have not been removed."""
        self._numbers = count()

    def add(self, at: Micros, until_s: float) -> int:
        """Add an arrival. Returns its number."""
        number = next(self._numbers)
        heappush(self._arrivals, PendingArrival(at, number, until_s))
        self.present.add(number)
        return number

    def remove(self, number: int) -> None:
        """Remove an arrival."""
        self.present.discard(number)
        while self._arrivals and self._arrivals[0].number not in self.present:
            heappop(self._arrivals)

    def first(self, now_s: float) -> PendingArrival | None:
        """Return the first arrival that the engine waits for at `now_s`; None without one.

        Arrivals that have been waited for long enough are removed. Cost: O(log arrivals), amortized.
        """
        while self._arrivals and self._arrivals[0].until_s <= now_s:
            self.remove(self._arrivals[0].number)
        return self._arrivals[0] if 0 < len(self.present) <= MAX_PENDING_ARRIVALS else None


SHORTEST_SLICE_S = 0.002
"""Interval at which a driver slightly behind yields to connections."""
LONGEST_SLICE_S = 0.02
"""Longest interval at which a driver far behind yields to connections. Longer slices send more tokens of a stream in
one write."""
FAR_BEHIND_STEPS = 4
"""The engine is far behind when this number of steps of the latest duration is due."""
FEWEST_STEPS = 8
"""Minimum number of steps that an engine far behind runs at a time."""
STRETCH_TOKENS = (64, 8192)
"""Bounds of the tokens that an engine far behind generates at a time; adapted to fill most of a time slice."""


class BacklogSlices:
    """Sets the length of time slices of backlog work, after which the event loop runs."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._step_us: Micros = 0
        """Duration of the latest step in simulated time."""
        self.far_behind_us: Micros = 0
        """How far behind the engine must be for stretches of several steps."""
        self._num_outputs = 0
        """Tokens that the latest step produced."""
        self._monotonic = monotonic
        self._stretch_tokens = STRETCH_TOKENS[0]
        self._started_s = self._stretch_started_s = 0.0
        self._slice_s = SHORTEST_SLICE_S

    def begin(self, behind_s: float) -> None:
        """Begin a slice whose first event is `behind_s` late."""
        self._started_s = self._stretch_started_s = self._monotonic()
        self._slice_s = min(max(SHORTEST_SLICE_S, behind_s / 4), LONGEST_SLICE_S)

    def record_step(self, step_us: Micros, num_outputs: int) -> None:
        """Record the duration of a step, and its tokens."""
        self._step_us, self.far_behind_us, self._num_outputs = step_us, FAR_BEHIND_STEPS * step_us, num_outputs

    def stretch(self, due_at: Micros, due_until: Micros) -> Micros:
        """Return the instant to advance to, several steps ahead, of an engine that is far behind.

        The stretch is as short as possible, since a request cannot arrive before an instant already processed.
        """
        num_steps = max(FEWEST_STEPS, self._stretch_tokens // max(1, self._num_outputs))
        return min(due_until, due_at + num_steps * self._step_us)

    def is_over(self) -> bool:
        """Whether the slice is over. Each call also adapts the length of the stretches to the time taken."""
        now_s = self._monotonic()
        fewest, most = STRETCH_TOKENS
        took_s, self._stretch_started_s = now_s - self._stretch_started_s, now_s
        if took_s > self._slice_s:
            self._stretch_tokens = max(fewest, self._stretch_tokens // 2)
        elif took_s < self._slice_s / 3:
            self._stretch_tokens = min(most, self._stretch_tokens * 2)
        return now_s - self._started_s > self._slice_s


_CLOCK_MONOTONIC = 1
_NONBLOCKING = os.O_NONBLOCK
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("first", _TimeSpec))


TIMER_SLACK_S = 0.0015
"""Loop timers are a millisecond coarse: wake this much early and spin the rest, serving I/O meanwhile."""

PRECISE_TIMER_SLACK_S = 0.00005
"""Shortest wait for which a precise timer is used."""

SPACING_S = 0.0002
"""Minimum time between future wakes: one wake serves several streams with separate clocks."""


class Alarm:
    """Calls `wake` once per `set`, at about the given instant and possibly before it.

    It uses a timer of the system that fires at or just after an instant of the monotonic clock, where there is one. The
    alarm belongs to the event loop that runs at the first `set`.
    """

    def __init__(self, wake: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self._wake = wake
        self._monotonic = monotonic
        self._handle: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        """Descriptor of the system's timer; negative without one."""
        self._awaits_timer = False
        self._libc: ctypes.CDLL | None = None
        self._spec = _TimerSpec()
        self._first = self._spec.first
        self._spec_pointer = ctypes.byref(self._spec)
        self._rang_at_s = -math.inf

    @property
    def is_set(self) -> bool:
        return self._awaits_timer or self._handle is not None

    def set(self, at_s: float) -> None:
        """Wake when the monotonic clock reads `at_s`. Replaces an earlier instant.

        Uses the system's timer, else a loop timer that fires early, else the next turn of the loop for short waits.
        """
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._awaits_timer = False
        loop = self._loop
        if loop is None:
            loop = self._open()
        now_s = self._monotonic()
        if at_s > now_s:
            at_s = max(at_s, self._rang_at_s + SPACING_S)
        left_s = at_s - now_s
        if self._fd >= 0 and left_s > PRECISE_TIMER_SLACK_S:
            # Rounded up: the timer must not fire before its instant, and an instant of zero would stop it.
            self._first.seconds, self._first.nanoseconds = divmod(max(1, math.ceil(at_s * 1e9)), 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._spec_pointer, None)  # type: ignore[union-attr]
            self._awaits_timer = True
        elif self._fd < 0 and left_s > 2 * TIMER_SLACK_S:
            self._handle = loop.call_later(left_s - TIMER_SLACK_S, self._ring)
        else:
            self._handle = loop.call_soon(self._ring)

    def cancel(self) -> None:
        """Cancel the pending wake."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._awaits_timer = False  # the timer may still fire, to no effect

    def close(self) -> None:
        """Close the alarm for good, and return its descriptor to the system."""
        self.cancel()
        if self._fd >= 0 and self._loop is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> asyncio.AbstractEventLoop:
        """Open the system's timer, which a clock given by a test cannot use. Returns the event loop."""
        loop = self._loop = asyncio.get_running_loop()
        if self._monotonic is time.monotonic and sys.platform.startswith("linux"):
            with suppress(OSError, AttributeError, NotImplementedError):
                self._libc = ctypes.CDLL(None)
                fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCKING | _CLOSE_ON_EXEC)
                if fd >= 0:
                    loop.add_reader(fd, self._fired)
                    self._fd = fd
        return loop

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew in the meantime
        if self._awaits_timer:
            self._awaits_timer = False
            self._rang_at_s = self._monotonic()
            self._wake()

    def _ring(self) -> None:
        self._handle = None
        self._rang_at_s = self._monotonic()
        self._wake()
