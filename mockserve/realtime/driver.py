"""The interface of all drivers, and the real-time driver of one engine: the only module that reads the wall clock.

The driver sleeps until an engine event or a frame is due, advances the engine, and delivers tokens to their replies.
All deadlines are absolute: lateness does not accumulate, and no token is delivered early.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from typing import Protocol, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from mockserve.realtime.deliveries import (
    MAX_QUIET_TURNS,
    MAX_READING_TURNS,
    Deliveries,
    EngineOutput,
    WriteCoalescer,
)
from mockserve.realtime.in_flight import FlightRecorder, InFlightRequest, ParentRequest, TokenReceiver, new_parent
from mockserve.realtime.timer import MAX_ARRIVAL_WAIT_S, Alarm, BacklogSlices, PendingArrivals, clock_of

T = TypeVar("T")


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

        The engine waits until `MAX_ARRIVAL_WAIT_S` after the arrival, where it is if it has passed `at`.
        """
        ...

    def submit(
        self,
        request: Request,
        receiver: TokenReceiver,
        arrived_at: Micros | None = None,
        parent: ParentRequest | None = None,
        rank: int | None = None,
    ) -> InFlightRequest:
        """Submit `request`, which arrives now or at a recent instant; its tokens go to `receiver`.

        `parent` has the choices of the prompt if there are several. `rank` selects one of several engines. Raises
        EngineFailedError if the engine has failed.
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
        """Call `function(engine, now)` on every engine. Returns the first falsy result, else the last."""
        ...

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for every engine."""
        ...

    def close(self) -> None:
        """Stop waking up. Open replies get no more calls."""
        ...


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


class RealtimeDriver(Deliveries):
    """Runs `engine` against the clock, `speed` simulated seconds per real second. Use it from one event loop only."""

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
        self._simulation: Simulation = engine if simulation is None else simulation
        super().__init__(wire, clock_of(self._simulation, speed, monotonic, origin_s), BacklogSlices(monotonic))
        self.failure: BaseException | None = None
        """The error that broke the engine; from then on every request fails."""
        self.on_failure: Callable[[BaseException], None] = _ignore_failure
        """Called with the error when the engine fails."""
        self._monotonic = monotonic
        self._jumps = math.isinf(speed)
        self._conditions = Conditions()
        self._wake_at: Micros | None = None
        self._alarm = Alarm(self._wake, monotonic)
        self._pending = PendingArrivals()
        self.clock = self._clock.now
        """Return the present instant in simulated microseconds."""
        self.instant_at = self._clock.instant_at
        """Return the simulated instant at which the monotonic clock has a reading."""

    @property
    def outputs(self) -> Mapping[int, EngineOutput]:
        """The output of each engine, by number."""
        return {0: self.output}

    @contextmanager
    def pending_arrival(self, at: Micros) -> Iterator[None]:
        """Keep the engine before `at` within a `with` block, until `MAX_ARRIVAL_WAIT_S` after `at`.

        Without it, the engine would run on while a long prompt is tokenized, and the request would arrive later than
        it was received. If time jumps, the engine does not wait.
        """
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

    def submit(
        self,
        request: Request,
        receiver: TokenReceiver,
        arrived_at: Micros | None = None,
        parent: ParentRequest | None = None,
        rank: int | None = None,
    ) -> InFlightRequest:
        """Submit `request`, which arrives now or at a recent instant; its tokens go to `receiver`.

        `parent` has the choices of the prompt if there are several. `rank` is 0 or None, since there is one engine.

        Raises EngineFailedError when the engine has failed.
        """
        if self.failure is not None:
            raise EngineFailedError("the engine has failed") from self.failure
        queueing_us = self._simulation.queueing_time(request)
        leader = self._flights.get(request.follows)
        if leader is None:
            queued_at = self._earliest((self.clock() if arrived_at is None else arrived_at) + queueing_us)
        else:
            queued_at = self._earliest(leader.queued_at)
        at = queued_at - queueing_us
        self._enter(request, at, rank)
        arrived_at = at if leader is None else leader.arrived_at
        flight = InFlightRequest(request, receiver, arrived_at, queued_at, parent=parent or new_parent(1))
        self._flights[request.id] = flight
        self._arm()
        return flight

    def _enter(self, request: Request, at: Micros, _rank: int | None) -> None:
        self._simulation.submit(request, at)

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has disconnected, and free its blocks. Its reply gets no more calls."""
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
        self._arm()
        return flight

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """End all or the named requests early, with their present tokens. Returns the number ended."""
        ending = [each for id, each in self._flights.items() if request_ids is None or id in request_ids]
        self._withdraw(ending)
        now = self.clock()
        for flight in ending:
            output = self._output_of(flight.request.id)
            self._remove_request(flight.request.id)
            output.recorder.completed(flight, now - flight.arrived_at, "abort")
            flight.receiver.abort(flight.num_tokens)
        return len(ending)

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Call `function(engine, now)` after processing all due events."""
        return self._call_engine(lambda at: function(self.engine, at))

    def _call_engine(self, function: Callable[[Micros], T]) -> T:
        now = self.clock()
        self._catch_up(now, waits=False)
        result = function(self._earliest(now))
        self._arm()
        return result

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Return when a condition holds for the engine."""
        await self._until(lambda: condition(self.engine))

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self._conditions.until(condition)

    def close(self) -> None:
        """Stop waking up. Open replies get no more calls."""
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
        if due_at is not None and self._pending.present:
            pending = self._pending.first(self._monotonic())
            if pending is not None and due_at >= pending.at:
                due_at = max(due_at, self.instant_at(pending.until_s) + 1)
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
        due_until = self._clock.due_until()
        if due_until < self._wake_at or self.wire.has_received_bytes(
            MAX_QUIET_TURNS if self._jumps else MAX_READING_TURNS
        ):
            self._alarm.set(self.seconds_at(self._wake_at))
            return
        try:
            due_at = self._catch_up(due_until)
        except BaseException as error:
            self.fail(error)
            raise
        self._arm_for(due_at)
        if self._conditions.waiters:
            self._conditions.wake_ready()

    def _catch_up(self, due_until: Micros, waits: bool = True) -> Micros | None:
        """Process due events instant by instant and deliver their tokens, and yield to the loop after a time slice.

        With `waits` the engine does not pass pending arrivals. Returns the instant of the engine's next event.
        """
        now_s, due_at = self._monotonic(), self._simulation.next_event_at()
        pending = self._pending.first(now_s) if waits and self._pending.present else None
        runs_until = due_until if pending is None else min(due_until, pending.at - 1)
        behind_s = 0.0 if due_at is None else now_s - self.seconds_at(due_at)
        slices = self._slices
        slices.begin(now_s, math.inf if self._jumps else behind_s)
        self.wire.is_held = True
        try:
            while True:
                if self._outbox:
                    self._deliver_due(due_until)
                if due_at is None or due_at > runs_until:
                    return due_at
                self._run_engine(slices.stretch(due_at, runs_until), due_until)
                due_at = self._simulation.next_event_at()
                if slices.is_over():
                    return due_at
        finally:
            self.wire.release()

    def _run_engine(self, until: Micros, now: Micros) -> None:
        # Step listeners read the state after each step.
        for event in self.engine.advance(until, allows_multi_step=True):
            self._happened(self.output, event, now)

    def fail(self, error: BaseException) -> None:
        """Fail all requests and waits after an error of the engine."""
        if self.failure is not None:
            return
        self.failure = error
        waiting = self._all_waiting()
        self.close()
        for flight in waiting:
            flight.receiver.fail(str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        self.on_failure(error)


def _ignore_failure(_error: BaseException) -> None:
    """No-op default."""
