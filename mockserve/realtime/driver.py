"""The interface of all drivers, and the real-time driver of one engine: the only module that reads the wall clock.

The driver sleeps until tokens of the engine's next event may be due, advances the engine, and delivers tokens to their
replies. Each reply writes once per wake. All deadlines are absolute: lateness does not accumulate, and no token is
delivered early.
"""

import asyncio
import ctypes
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from http import HTTPStatus
from itertools import count, pairwise
from typing import NamedTuple, Protocol, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import OutputOverheads, OutputQueue, output_overheads
from blis_sim.engine.events import BatchDone, CacheChanged, Event, Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.metrics.counters import Lateness
from mockserve.realtime.in_flight import FlightRecorder, InFlightRequest

T = TypeVar("T")

MAX_QUIET_TURNS = 16
"""Turns of the event loop for which a wake waits until no bytes are received, if time jumps."""
MAX_READING_TURNS = 3
"""Turns for which a wake waits at a set speed, so that a request is submitted before the engine passes it."""
HEADS_WAIT_S = 0.1
"""Minimum wait of a stream's head for its first event if time jumps."""

_logger = logging.getLogger(__name__)


class BufferedStream(Protocol):
    """A stream with buffered frames."""

    @property
    def due_s(self) -> float:
        """Due time of the first frame, on the monotonic clock."""
        ...

    def leave(self) -> int:
        """Send all buffered frames in one write. Returns their number."""
        ...


class PendingHead(Protocol):
    """A stream whose head may still be unsent."""

    def send_head(self) -> None:
        """Send the head, unless it has been sent."""
        ...


class WriteCoalescer:
    """Coalesces the writes of all connections and engines of a server.

    During a wake, streams buffer their frames. At its end each stream writes once, however many of its tokens were due.
    """

    def __init__(
        self, lateness: Lateness, is_timed: bool = True, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Without `is_timed`, frames have no due times and lateness is not measured."""
        self.lateness = lateness
        self._is_timed = is_timed
        self.is_held = False
        """Whether streams must buffer their frames, during a wake."""
        self.due_s = 0.0
        """Due time of the frames in delivery."""
        self.departing: list[BufferedStream] = []
        """Streams with buffered frames, in the order of their first."""
        self.num_received = 0
        """Number of reads from connections."""
        self.num_received_at_check = 0
        """The value of `num_received` at the last check."""
        self.num_turns_waited = 0
        """Consecutive checks that found new bytes."""
        self._monotonic = monotonic
        self._new: list[PendingHead] = []
        """Streams with possibly unsent heads."""
        self._waiting: list[PendingHead] = []
        """Streams with possibly unsent heads that were new at the previous check."""

    def send_head_soon(self, stream: PendingHead) -> None:
        """Delay the head of a new stream, so that it is sent together with a first event that is due now.

        The head waits for one turn of the event loop; without timing, for as long as wakes may wait for quiet.
        """
        if self._is_timed:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, stream.send_head)
            return
        if not self._new and not self._waiting:
            asyncio.get_running_loop().call_later(HEADS_WAIT_S, self._send_heads)
        self._new.append(stream)

    def _send_heads(self) -> None:
        late, self._waiting, self._new = self._waiting, self._new, []
        if self._waiting:
            asyncio.get_running_loop().call_later(HEADS_WAIT_S, self._send_heads)
        for each in late:
            each.send_head()

    def release(self) -> None:
        """Write all buffered frames, in the order of each stream's first frame, and buffer no more."""
        self.is_held = False
        departing, self.departing = self.departing, []
        for each in departing:
            num_frames = each.leave()
            if self._is_timed:
                now_s = self._monotonic()
                self.lateness.observe(now_s - each.due_s, now_s, num_frames)

    def has_received_bytes(self, most_turns: int) -> bool:
        """Whether bytes were received since the last check, so that requests may be about to be submitted.

        A caller that waits for False waits at most `most_turns` turns.
        """
        if self.num_received == self.num_received_at_check or self.num_turns_waited >= most_turns:
            self.num_turns_waited = 0
            return False
        self.num_received_at_check = self.num_received
        self.num_turns_waited += 1
        return True

    def measure(self) -> None:
        """Record the lateness of a frame that is not sent through a stream."""
        if self._is_timed:
            now_s = self._monotonic()
            self.lateness.observe(now_s - self.due_s, now_s)


# The driver's clock and alarm, and the time slices of a backlog.

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


# The driver.


class EngineFailedError(RuntimeError):
    """Raised when the engine accepts no more requests."""


class EngineInfo(Protocol):
    """An engine in this or another process; one of several engines represents all."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def stats(self) -> EngineStats: ...


class Driver(Protocol):
    """Accepts requests and delivers their tokens when due. Use it from one event loop only."""

    @property
    def engine(self) -> EngineInfo: ...

    @property
    def failure(self) -> BaseException | None:
        """The error that broke an engine; from then on every request fails."""
        ...

    @property
    def num_unfinished_requests(self) -> int:
        """Requests whose last token has not been produced yet."""
        ...

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet."""
        ...

    @property
    def request_ids(self) -> Collection[str]:
        """Requests that have not ended."""
        ...

    def clock(self) -> Micros:
        """The present instant in simulated microseconds."""
        ...

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        ...

    def pending_arrival(self, at: Micros) -> AbstractContextManager[None]:
        """Keep the engine before `at` within a `with` block that prepares a request which arrived at `at`.

        The engine waits until `MAX_ARRIVAL_WAIT_S` after the arrival, where it is if it has passed `at`. If time
        jumps, the engine does not wait.
        """
        ...

    def submit(self, flight: InFlightRequest, arrived_at: Micros | None = None, rank: int | None = None) -> None:
        """Submit a request, which arrives now or at a recent instant and gets its tokens.

        `rank` selects one of several engines. Raises EngineFailedError if the engine has failed.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has disconnected, and free its blocks. Its reply gets no more calls."""
        ...

    async def until_routed(self, request_ids: Collection[str]) -> None:
        """Return when each request has an instance or has ended: at once where there is nothing to choose."""
        ...

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """End all or the named requests early, with their present tokens. Returns the number ended."""
        ...

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` on every engine, after processing all due events.

        Returns the first falsy result, else the last.
        """
        ...

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for every engine."""
        ...

    def close(self) -> None:
        """Stop waking up. Open replies get no more calls."""
        ...


STATUSES: Mapping[Outcome, HTTPStatus] = {
    Outcome.REJECTED: HTTPStatus.TOO_MANY_REQUESTS,
    Outcome.EVICTED: HTTPStatus.TOO_MANY_REQUESTS,
    Outcome.FAILED: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""HTTP status by outcome; any other outcome is an error of the client."""


def ignore(*_told: object) -> None:
    """Do nothing: what a listener does by default."""


MOST_TOKENS_TOGETHER = 16
"""Tokens of a step that is computed when its first token is due: one wake less is worth much for few tokens only."""


@dataclass(slots=True)
class EngineOutput:
    """One engine with listeners to its output."""

    engine: Engine
    recorder: FlightRecorder
    on_cache_changes: Callable[[SequenceOf[CacheChange]], None] = ignore
    """Called with the changes of the prefix cache after each step."""
    on_batch: Callable[[BatchDone], None] = ignore
    """Called with the batch of each step before its tokens; the engine reports batches on request."""
    num_outputs: int = 0
    """Number of tokens of the latest step."""
    num_going_on: int = -1
    """Number of tokens of the latest step that did not end their requests; negative before the first step."""
    queue: OutputQueue = field(init=False)
    """Queue of the simulated API server process that sends the engine's tokens."""
    overheads: OutputOverheads = field(init=False)
    """Delays of the engine's tokens."""

    def __post_init__(self) -> None:
        self.queue = OutputQueue(self.engine.latency)
        self.overheads = output_overheads(self.engine.config, self.engine.latency)

    def shortest_delay_us(self) -> Micros:
        """Return the shortest time from the end of the next step until one of its tokens is due.

        It is 0 for an engine whose steps are reported to others, who learn of them as they end. It is 0 for
        large steps, too. Computing them takes so long that tokens which wait for it would be late.
        """
        if self.num_going_on > MOST_TOKENS_TOGETHER:
            return 0
        if self.on_batch is not ignore or self.on_cache_changes is not ignore:
            return 0
        overheads = self.overheads
        return overheads.step_us + max(1, self.num_going_on) * overheads.sequence_us + int(self.queue.turn_us)


class Conditions:
    """Futures that are resolved when a predicate becomes true."""

    def __init__(self) -> None:
        self.waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds at a check, at once if it holds now."""
        if not condition():
            found = asyncio.get_running_loop().create_future()
            self.waiters.append((condition, found))
            await found

    def wake_ready(self) -> None:
        """Wake the waiters whose condition holds, and drop cancelled ones."""
        for entry in list(self.waiters):
            condition, found = entry
            if found.done() or condition():
                self.waiters.remove(entry)
                if not found.done():
                    found.set_result(None)


class RealtimeDriver:
    """A `Driver` that runs `engine` against the clock, `speed` simulated seconds per real second.

    It has the requests in flight, and their generated tokens that are not due yet. Between small steps
    its engine stays behind the clock by the shortest time from a step's end to a token's delivery: one wake does both.
    """

    def __init__(
        self,
        engine: Engine,
        recorder: FlightRecorder,
        wire: WriteCoalescer,
        speed: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        origin_s: float | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        """`origin_s` is the reading of the monotonic clock at the simulated instant 0, by default now.

        With an infinite `speed`, time jumps to the next event after received requests. `simulation` is the group of
        engines that the engine belongs to, if any.
        """
        self.engine = engine
        self.output = EngineOutput(engine, recorder)
        self.wire = wire
        """Coalesces the writes of streams and measures their lateness."""
        self._simulation: Simulation = engine if simulation is None else simulation
        self.failure: BaseException | None = None
        """The error that broke the engine; from then on every request fails."""
        self.on_failure: Callable[[BaseException], None] = ignore
        """Called with the error when the engine fails."""
        self._monotonic = monotonic
        self._us_per_s = speed * 1e6
        self._jumps = math.isinf(speed)
        self._conditions = Conditions()
        self._wake_at: Micros | None = None
        self._next_at: Micros | None = None
        """When the next event of the engine is due."""
        self._lag_us: Micros = 0
        """How far the engine may stay behind the clock."""
        self._alarm = Alarm(self._wake, monotonic)
        self._pending = PendingArrivals()
        self._slices = BacklogSlices(monotonic)
        self._flights: dict[str, InFlightRequest] = {}
        self._outbox: list[tuple[Micros, int, InFlightRequest, int, bool]] = []
        self._numbers = count()
        clock = clock_of(self._simulation, speed, monotonic, origin_s)
        self.clock = clock.now
        self.instant_at = clock.instant_at
        self.seconds_at = clock.seconds_at
        """Return the reading of the monotonic clock at a simulated instant."""
        self._due_until = clock.due_until

    @property
    def outputs(self) -> Mapping[int, EngineOutput]:
        """The output of each engine, by number."""
        return {0: self.output}

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._flights)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet. Cost: O(requests)."""
        return sum(flight.request.input_tokens for flight in tuple(self._flights.values()) if not flight.num_tokens)

    @property
    def request_ids(self) -> Collection[str]:
        return self._flights.keys()

    @contextmanager
    def pending_arrival(self, at: Micros) -> Iterator[None]:
        # Without it, the engine would run on while a long prompt is tokenized, and the request would arrive later than
        # it was received.
        if self._jumps:
            yield
            return
        number = self._pending.add(self._earliest(at), self.seconds_at(at) + MAX_ARRIVAL_WAIT_S)
        try:
            yield
        finally:
            self._pending.remove(number)
            if self._alarm.is_set:
                self._arm()

    def submit(self, flight: InFlightRequest, arrived_at: Micros | None = None, rank: int | None = None) -> None:
        if self.failure is not None:
            raise EngineFailedError("the engine has failed") from self.failure
        request = flight.request
        queueing_us = self._simulation.queueing_time(request)
        leader = self._flights.get(request.follows) if request.follows else None
        if leader is not None:
            queued_at = leader.queued_at
        else:
            queued_at = (self.clock() if arrived_at is None else arrived_at) + queueing_us
        if (done_until := self._simulation.now) is not None and queued_at <= done_until:
            queued_at = done_until + 1
        at = queued_at - queueing_us
        self._enter(request, at, rank)
        flight.arrived_at, flight.queued_at = at if leader is None else leader.arrived_at, queued_at
        self._flights[request.id] = flight
        self._arm()

    def _enter(self, request: Request, at: Micros, _rank: int | None) -> None:
        self._simulation.submit(request, at)

    def abort(self, request_id: str) -> None:
        if request_id in self._flights:
            output, flight = self._output_of(request_id), self._remove_request(request_id)
            if flight is not None:
                output.recorder.aborted(flight)

    async def until_routed(self, request_ids: Collection[str]) -> None:
        """Return at once: there is one engine."""

    def _output_of(self, _request_id: str) -> EngineOutput:
        """Return the output of the engine of a request."""
        return self.output

    def _remove_request(self, request_id: str) -> InFlightRequest | None:
        """Remove a request from the engine, if present."""
        flight = self._flights.pop(request_id, None)
        if flight is None or self.failure is not None:
            return None
        self._simulation.abort(request_id, self._earliest(self.clock()))
        for output in self.outputs.values():
            output.num_going_on = 0  # the next step may have fewer tokens, which are due the sooner
        self._set_lag()
        self._arm()
        return flight

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        ending = [each for id, each in self._flights.items() if request_ids is None or id in request_ids]
        leaving = set(map(id, ending))
        self._outbox = [entry for entry in self._outbox if id(entry[2]) not in leaving]  # they would follow their end
        heapify(self._outbox)
        now = self.clock()
        for flight in ending:
            output = self._output_of(flight.request.id)
            self._remove_request(flight.request.id)
            output.recorder.completed(flight, now - flight.arrived_at, "abort")
            flight.abort(flight.num_tokens)
        return len(ending)

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        return self._call_engine(lambda at: function(self.engine, at))

    def _call_engine(self, function: Callable[[Micros], T]) -> T:
        now = self.clock()
        self._catch_up(self._simulation.next_event_at(), now, now)
        result = function(self._earliest(now))
        self._arm()
        return result

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        await self._until(lambda: condition(self.engine))

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._conditions.until(condition)

    def close(self) -> None:
        self._alarm.close()
        self._flights.clear()
        self._outbox.clear()

    def _earliest(self, at: Micros) -> Micros:
        """Return `at`, or the first instant that the engine has not processed if that is later."""
        done_until = self._simulation.now
        return at if done_until is None else max(at, done_until + 1)

    # --- when to wake ---

    def _arm(self) -> None:
        """Set the alarm to the next due instant of the engine or the outbox."""
        self._arm_for(self._simulation.next_event_at())

    def _arm_for(self, due_at: Micros | None) -> None:
        """Set the alarm, while the next event of the engine is due at `due_at`."""
        self._next_at = due_at
        if due_at is not None:
            if self._pending.present:
                pending = self._pending.first(self._monotonic())
                if pending is not None and due_at >= pending.at:
                    due_at = max(due_at, self.instant_at(pending.until_s) + 1)
            due_at += self._lag_us
        if self._outbox and (due_at is None or self._outbox[0][0] < due_at):
            due_at = self._outbox[0][0]
        if due_at == self._wake_at and self._alarm.is_set:
            return
        self._wake_at = due_at
        if due_at is None:
            self._alarm.cancel()
        else:
            self._alarm.set(self.seconds_at(due_at))

    def _wake(self) -> None:
        assert self._wake_at is not None
        due_until, wire, due_at = self._due_until(), self.wire, self._next_at
        has_news = wire.num_received != wire.num_received_at_check or wire.num_turns_waited
        if due_until < self._wake_at or (
            has_news and wire.has_received_bytes(MAX_QUIET_TURNS if self._jumps else MAX_READING_TURNS)
        ):
            self._alarm.set(self.seconds_at(self._wake_at))
            return
        runs_until = due_until - self._lag_us
        if self._pending.present and (pending := self._pending.first(self._monotonic())) is not None:
            runs_until = min(runs_until, pending.at - 1)
        try:
            due_at = self._catch_up(due_at, due_until, runs_until)
        except BaseException as error:
            self.fail(error)
            raise
        self._arm_for(due_at)
        if self._conditions.waiters:
            self._conditions.wake_ready()

    def _catch_up(self, due_at: Micros | None, due_until: Micros, runs_until: Micros) -> Micros | None:
        """Process events, of which the next is due at `due_at`, up to `runs_until`, and deliver tokens up to
        `due_until`.

        The loop gets control back after a time slice. Returns the instant of the engine's next event.
        """
        simulation, slices, num_runs = self._simulation, self._slices, 0
        self.wire.is_held = True
        try:
            while True:
                if self._outbox and self._outbox[0][0] <= due_until:
                    self._deliver_due(due_until)
                if due_at is None or due_at > runs_until:
                    return due_at
                if not num_runs:
                    slices.begin(math.inf if self._jumps else (runs_until - due_at) / self._us_per_s)
                elif slices.is_over():
                    return due_at
                num_runs += 1
                is_far = runs_until - due_at >= slices.far_behind_us
                self._run_engine(slices.stretch(due_at, runs_until) if is_far else due_at, due_until)
                due_at = simulation.next_event_at()
        finally:
            self.wire.release()

    def _set_lag(self) -> None:
        """Let the engines stay behind the clock as far as none of their tokens can be due."""
        self._lag_us = min([output.shortest_delay_us() for output in self.outputs.values()])

    def _run_engine(self, until: Micros, now: Micros) -> None:
        # Step listeners read the state after each step.
        for event in self.engine.advance(until, allows_multi_step=True):
            if type(event) is StepDone:
                self._step_done(self.output, event, now)
            else:
                self._happened(self.output, event, now)

    def fail(self, error: BaseException) -> None:
        """Fail all requests and waits after an error of the engine."""
        if self.failure is not None:
            return
        self.failure = error
        waiting = [*self._flights.values(), *(entry[2] for entry in self._outbox)]
        self.close()
        for flight in {id(flight): flight for flight in waiting}.values():
            flight.fail(str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        self.on_failure(error)

    # --- what happens in the engine ---

    def _deliver_due(self, now: Micros) -> None:
        """Deliver the due frames."""
        outbox = self._outbox
        while outbox and outbox[0][0] <= now:
            due_at, _, flight, number, is_last = heappop(outbox)
            self._deliver(due_at, flight, number, is_last)

    def _happened(self, output: EngineOutput, event: Event, now: Micros) -> None:
        if isinstance(event, StepDone):
            self._step_done(output, event, now)
        elif isinstance(event, StepsDone):
            self._steps_done(output, event, now)
        elif isinstance(event, Scheduled):
            self._scheduled(output, event)
        elif isinstance(event, Preempted):
            flight = self._flights.get(event.sequence.request.id)
            if flight is not None:
                flight.num_preemptions += 1
        elif isinstance(event, CacheChanged):
            output.on_cache_changes(event.changes)
        elif isinstance(event, Finished):
            self._finished(output, event, now)
        elif isinstance(event, BatchDone):
            output.on_batch(event)

    def _step_done(self, output: EngineOutput, event: StepDone, now: Micros) -> None:  # noqa: C901 - one loop
        """Record the tokens of a step; tokens recomputed after a preemption are not sent again."""
        at, index, flights, overheads = event.at, event.index, self._flights, output.overheads
        gaps: dict[Micros, int] = {}
        output.num_outputs = num_outputs = len(event.emitted)
        overhead_us, token_overhead_us = overheads.step_us + num_outputs * overheads.sequence_us, overheads.token_us
        due_at = at + overhead_us
        turn_us = output.queue.turn_us
        wait_us = output.queue.enter(at, num_outputs)
        num_tokens = num_prompt_tokens = num_ended = 0
        late: list[tuple[Micros, InFlightRequest, int, Sequence | None]] = []
        """Tokens from the first that ends a request on, with the sequences that end. Choices of one reply come in the
        order of the batch, and requests end after their last step is recorded."""
        for sequence in event.emitted:
            wait_us += turn_us
            flight = flights.get(sequence.request.id)
            if flight is None:
                num_ended += 1
                continue
            number, num_before = sequence.tokens_at(index), flight.num_tokens
            if number <= num_before:
                continue
            flight.num_tokens = number
            num_tokens += number - num_before
            if token_overhead_us or turn_us:
                flight.turn_us = int(wait_us)
                due_at = at + overhead_us + number * token_overhead_us + flight.turn_us
            if num_before:
                gap = at - flight.last_token_at
                gaps[gap] = gaps.get(gap, 0) + 1
            else:
                flight.first_token_at = at
                num_prompt_tokens += flight.request.input_tokens - flight.num_cached_tokens
                flight.first_token_latency_us = due_at - flight.arrived_at
                output.recorder.first_token(flight, flight.first_token_latency_us)
            flight.last_token_at = at
            has_ended = number >= flight.request.output_tokens
            if late or has_ended:
                late.append((due_at, flight, number, sequence if has_ended else None))
            elif due_at > now:
                heappush(self._outbox, (due_at, next(self._numbers), flight, number, False))
            else:
                self._deliver(due_at, flight, number, False)
        if num_tokens:
            output.recorder.step(num_prompt_tokens, num_tokens, gaps)
        slices = self._slices
        if at > event.started_at:
            slices.record_step(at - event.started_at, num_outputs)
        elif gaps:  # a step of no duration belongs to one request of an engine with set times
            slices.record_step(max(gaps), len(flights))
        for due_at, flight, number, ended in late:
            if ended is not None:
                num_ended += 1
                self._finished(output, Finished(at, ended, Outcome.COMPLETED), now)
            elif due_at > now:
                heappush(self._outbox, (due_at, next(self._numbers), flight, number, False))
            else:
                self._deliver(due_at, flight, number, False)
        if num_outputs - num_ended != output.num_going_on:
            output.num_going_on = num_outputs - num_ended
            self._set_lag()

    def _steps_done(self, output: EngineOutput, event: StepsDone, now: Micros) -> None:
        """Record the tokens of several steps. If all are due, each request's tokens are delivered together."""
        ends, first, flights, overheads = event.ends, event.first, self._flights, output.overheads
        overhead_us = overheads.step_us + len(event.emitted) * overheads.sequence_us
        if overheads.token_us or output.queue.turn_us or ends[-1] + overhead_us > now:
            for index, at in enumerate(ends, first):
                self._step_done(output, StepDone(at, index, at, event.emitted), now)
            return
        self.wire.due_s = self.seconds_at(ends[0] + overhead_us)
        gaps: dict[Micros, int] = {}
        last = first + len(ends) - 1
        for sequence in event.emitted:
            flight = flights.get(sequence.request.id)
            if flight is None:
                continue
            gap = ends[0] - flight.last_token_at
            gaps[gap] = gaps.get(gap, 0) + 1
            num_before, flight.num_tokens = flight.num_tokens, sequence.tokens_at(last)
            flight.last_token_at = ends[-1]
            try:
                flight.tokens(num_before + 1, flight.num_tokens)
            except Exception:  # noqa: BLE001  (a fault in one reply ends that reply alone)
                _fail_reply(flight)
        num_unfinished_requests = sum(gaps.values())
        output.recorder.step(0, num_unfinished_requests, gaps)
        for before, at in pairwise(ends):
            output.recorder.step(0, num_unfinished_requests, {at - before: num_unfinished_requests})

    def _scheduled(self, output: EngineOutput, event: Scheduled) -> None:
        sequence = event.sequence
        flight = self._flights.get(sequence.request.id)
        if flight is not None:
            flight.num_cached_tokens, flight.num_external_tokens = sequence.num_cached_tokens, 0
            if sequence.num_external_tokens:
                # vLLM counts a prompt found whole outside as cached whole, though its last token is computed here.
                recomputed = int(_is_found_whole_outside(sequence))
                flight.num_cached_tokens += recomputed
                flight.num_external_tokens = sequence.num_external_tokens + recomputed
            output.recorder.scheduled(flight, event.at)

    def _finished(self, output: EngineOutput, event: Finished, now: Micros) -> None:
        flight = self._flights.pop(event.sequence.request.id, None)
        if flight is None:
            return
        if event.outcome in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED):
            overheads, number = output.overheads, flight.num_tokens
            due_at = event.at + overheads.step_us + output.num_outputs * overheads.sequence_us
            due_at += number * overheads.token_us + overheads.last_us + flight.turn_us
            flight.e2e_latency_us = due_at - flight.arrived_at
            output.recorder.completed(flight, flight.e2e_latency_us, flight.finish_reason)
            if due_at <= now:
                self._deliver(due_at, flight, number, True)
            else:
                heappush(self._outbox, (due_at, next(self._numbers), flight, number, True))
        else:
            flight.fail(f"the request was {event.outcome}: {event.detail}", self._status_of(event))

    def _status_of(self, event: Finished) -> HTTPStatus:
        """Return the error for the client of a request that was not completed."""
        return STATUSES.get(event.outcome, HTTPStatus.BAD_REQUEST)

    def _deliver(self, due_at: Micros, flight: InFlightRequest, number: int, is_last: bool) -> None:
        self.wire.due_s = self.seconds_at(due_at)
        try:
            if not is_last:
                flight.token(number)
                return
            if not flight.is_streamed:
                self.wire.measure()
            flight.finish(number)
        except Exception:  # noqa: BLE001  (a fault in one reply ends that reply alone)
            _fail_reply(flight)


def _is_found_whole_outside(sequence: Sequence) -> bool:
    """Whether another instance or CPU memory had the whole prompt of a request."""
    request = sequence.request
    if sequence.num_cached_tokens < request.input_tokens - 1:
        return False
    return request.external is None or request.external.num_tokens >= request.input_tokens


def _fail_reply(flight: InFlightRequest) -> None:
    """End a reply that failed to be written with a server error, so that other replies are unaffected."""
    _logger.exception("the reply to %s could not be written", flight.request.id)
    with suppress(Exception):
        flight.fail("the reply could not be written", HTTPStatus.INTERNAL_SERVER_ERROR)
    flight.detach()
