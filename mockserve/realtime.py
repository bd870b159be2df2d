"""The real-time driver: the only place that knows the wall clock.

It sleeps until the engine or a frame has something due, lets the engine do it, and hands tokens to their replies. All
deadlines are absolute, so being late once delays nothing that comes after, and nothing is ever handed over early.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from http import HTTPStatus
from typing import TypeVar

from engine.core import Engine
from engine.delivery import output_delay
from engine.events import CacheChanged, Event, Finished, Preempted, Scheduled, StepDone
from engine.request import Request
from engine.sequence import Outcome
from engine.simulation import Simulation
from engine.units import Micros
from mockserve.engine_output import EngineOutput
from mockserve.flight import Flight, FlightRecorder, Reply, Siblings, new_siblings
from mockserve.lateness import Lateness
from mockserve.outcomes import STATUSES
from mockserve.timer import PreciseTimer, precise_timer

T = TypeVar("T")

TIMER_SLACK_S = 0.0015
"""Loop timers are a millisecond coarse: wake this much early and spin the rest, serving I/O meanwhile."""

PRECISE_TIMER_SLACK_S = 0.00005
"""Less than this is not worth a timer where timers are precise."""


LONGEST_TIMER_S = 3600.0
"""Instants further away are looked at again, since loops refuse timers of many years."""

BACKLOG_SLICE_S = 0.002
"""A driver that has fallen behind serves the connections this often."""


class EngineFailedError(RuntimeError):
    """The engine takes no more requests."""


class RealtimeDriver:
    """Runs `engine` against the clock, `speed` simulated seconds per real second. Use it from one event loop only."""

    def __init__(
        self,
        engine: Engine,
        recorder: FlightRecorder,
        lateness: Lateness,
        speed: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
        origin_s: float | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        """`origin_s` is what the monotonic clock reads at the simulated instant 0, by default now.

        `simulation` is what the engine is part of, if it is not alone.
        """
        self.engine = engine
        self.output = EngineOutput(engine, recorder)
        self._simulation: Simulation = engine if simulation is None else simulation
        self.lateness = lateness
        self.failure: BaseException | None = None
        """What the engine broke with; from then on every request fails."""
        self.tell_step: Callable[[Micros], None] = _ignore_step
        """Who wants to know when a step has ended."""
        self.tell_failure: Callable[[BaseException], None] = _ignore_failure
        """Who wants to know that the engine broke."""
        self._monotonic = monotonic
        self._us_per_s = speed * 1e6
        self._origin_s = monotonic() if origin_s is None else origin_s
        self._flights: dict[str, Flight] = {}
        self._outbox: list[tuple[Micros, int, Flight, int, bool]] = []
        self._numbers = itertools.count()
        self._awaited: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._wake_at: Micros | None = None
        self._handle: asyncio.Handle | PreciseTimer | None = None
        self._timer: PreciseTimer | None = None
        self._has_looked_for_timer = False

    @property
    def num_flights(self) -> int:
        """Requests whose last token the engine has not produced yet."""
        return len(self._flights)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet. Cost: O(requests)."""
        return sum(flight.request.input_tokens for flight in self._flights.values() if not flight.num_tokens)

    @property
    def request_ids(self) -> Collection[str]:
        """Their ids."""
        return self._flights.keys()

    def clock(self) -> Micros:
        """The present instant in simulated microseconds."""
        return self.instant_at(self._monotonic())

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        return int((reading_s - self._origin_s) * self._us_per_s)

    def seconds_at(self, at: Micros) -> float:
        """The reading of the monotonic clock at a simulated instant."""
        return self._origin_s + at / self._us_per_s

    def submit(
        self,
        request: Request,
        reply: Reply,
        arrived_at: Micros | None = None,
        siblings: Siblings | None = None,
        rank: int | None = None,
    ) -> Flight:
        """Let `request` arrive, now or at an instant just past; its tokens go to `reply`.

        `siblings` are the choices of the same prompt, if it is not the only one. `rank` is 0 or None: there is one.

        Raises EngineFailedError when the engine has failed.
        """
        if self.failure is not None:
            raise EngineFailedError("the engine has failed") from self.failure
        queueing_us = self._simulation.queueing_time(request)
        queued_at = self._soonest((self.clock() if arrived_at is None else arrived_at) + queueing_us)
        at = queued_at - queueing_us
        self._enter(request, at, rank)
        flight = Flight(request, reply, at, queued_at, siblings=siblings or new_siblings(1))
        self._flights[request.id] = flight
        self._arm()
        return flight

    def _enter(self, request: Request, at: Micros, _rank: int | None) -> None:
        self._simulation.submit(request, at)

    def abort(self, request_id: str) -> None:
        """The client of `request_id` is gone: free what it holds now. Its reply hears nothing more."""
        output, flight = self._output_of(request_id), self._leave(request_id)
        if flight is not None:
            output.recorder.aborted(flight)

    def _output_of(self, _request_id: str) -> EngineOutput:
        """Of the engine that has a request."""
        return self.output

    def _leave(self, request_id: str) -> Flight | None:
        """Take a request out of the engine, if it is there."""
        flight = self._flights.pop(request_id, None)
        if flight is None or self.failure is not None:
            return None
        self._simulation.abort(request_id, self._soonest(self.clock()))
        self._arm()
        return flight

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """Let requests, all or those named, end with the tokens they have. Returns how many did."""
        ending = [each for id, each in self._flights.items() if request_ids is None or id in request_ids]
        # Tokens still under way to their clients would come after the end.
        leaving = set(map(id, ending))
        self._outbox = [entry for entry in self._outbox if id(entry[2]) not in leaving]
        heapify(self._outbox)
        now = self.clock()
        for flight in ending:
            output = self._output_of(flight.request.id)
            self._leave(flight.request.id)
            output.recorder.completed(flight, now - flight.arrived_at, "abort")
            flight.reply.abort(flight.num_tokens)
        return len(ending)

    def interfere(self, act: Callable[[Engine, Micros], T]) -> T:
        """Let `act` do something to the engine now, after all that is due, at the instant it is given."""
        return self._act(lambda at: act(self.engine, at))

    def _act(self, act: Callable[[Micros], T]) -> T:
        now = self.clock()
        self._catch_up(now)
        result = act(self._soonest(now))
        self._arm()
        return result

    async def until(self, is_so: Callable[[Engine], bool]) -> None:
        """Return when something holds of the engine."""
        await self._until(lambda: is_so(self.engine))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        if not is_so():
            found = asyncio.get_running_loop().create_future()
            self._awaited.append((is_so, found))
            await found

    def close(self) -> None:
        """Stop waking up. Open replies hear nothing more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        self._flights.clear()
        self._outbox.clear()

    def _soonest(self, at: Micros) -> Micros:
        """`at`, or the first instant that the engine has not done yet."""
        done_until = self._simulation.now
        return at if done_until is None else max(at, done_until + 1)

    # --- when to wake ---

    def _arm(self) -> None:
        """Wake at the next instant at which the engine or the outbox has something due."""
        due_at = self._simulation.next_event_at()
        if self._outbox and (due_at is None or self._outbox[0][0] < due_at):
            due_at = self._outbox[0][0]
        if due_at == self._wake_at and self._handle is not None:
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._wake_at = due_at
        if due_at is not None:
            self._sleep(due_at)

    def _sleep(self, due_at: Micros) -> None:
        """Set a precise timer, or one that is early for sure; or let the loop turn once when that is too coarse."""
        loop = asyncio.get_running_loop()
        if not self._has_looked_for_timer:
            self._has_looked_for_timer = True
            # It reads the system's clock, so it is of no use to a driver with another one.
            self._timer = precise_timer(loop) if self._monotonic is time.monotonic else None
        at_s = self.seconds_at(due_at)
        left_s = at_s - self._monotonic()
        if self._timer is not None and left_s > PRECISE_TIMER_SLACK_S:
            self._handle = self._timer.start(at_s, self._wake)
        elif self._timer is None and left_s > 2 * TIMER_SLACK_S:
            self._handle = loop.call_later(left_s - TIMER_SLACK_S, self._wake)
        else:
            self._handle = loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._handle = None
        assert self._wake_at is not None
        now = self.clock()
        if now < self._wake_at:
            self._sleep(self._wake_at)
            return
        try:
            self._catch_up(now)
        except BaseException as error:
            self.fail(error)
            raise
        self._arm()
        if self._awaited:
            self._tell_awaited()

    def _catch_up(self, now: Micros) -> None:
        """Do what is due up to `now`, instant by instant. After `BACKLOG_SLICE_S` the rest waits for the next turn."""
        stop_s = self._monotonic() + BACKLOG_SLICE_S
        while True:
            self._deliver_due(now)
            due_at = self._simulation.next_event_at()
            if due_at is None or due_at > now:
                return
            self._run_engine(due_at, now)
            if self._monotonic() > stop_s:
                return

    def _tell_awaited(self) -> None:
        """Wake those who wait for something that is so by now; who was cancelled waits no more."""
        for entry in list(self._awaited):
            is_so, found = entry
            if found.done() or is_so():
                self._awaited.remove(entry)
                if not found.done():
                    found.set_result(None)

    # --- what is due ---

    def _deliver_due(self, now: Micros) -> None:
        """Hand over the frames whose time has come."""
        outbox = self._outbox
        while outbox and outbox[0][0] <= now:
            due_at, _, flight, number, is_last = heappop(outbox)
            self._deliver(due_at, flight, number, is_last)

    def _run_engine(self, until: Micros, now: Micros) -> None:
        for event in self.engine.advance(until):
            self._happened(self.output, event, now)

    def _happened(self, output: EngineOutput, event: Event, now: Micros) -> None:
        if isinstance(event, StepDone):
            self._step_done(output, event, now)
        elif isinstance(event, Scheduled):
            self._scheduled(output, event)
        elif isinstance(event, Preempted):
            self._preempted(event)
        elif isinstance(event, CacheChanged):
            output.tell_cache_changes(event.changes)
        else:
            self._finished(output, event, now)

    def _step_done(self, output: EngineOutput, event: StepDone, now: Micros) -> None:
        """Each sequence that emitted has more tokens; those that it had before a preemption are not sent again."""
        at, engine, recorder, flights = event.at, output.engine, output.recorder, self._flights
        gaps: dict[Micros, int] = {}
        output.num_outputs = num_outputs = len(event.emitted)
        num_tokens = num_prompt_tokens = 0
        for sequence in event.emitted:
            flight = flights.get(sequence.request.id)
            if flight is None:
                continue
            number = sequence.tokens_at(event.index)
            num_before = flight.num_tokens
            if number <= num_before:
                continue
            flight.num_tokens = number
            due_at = at + output_delay(engine.config, engine.latency, number, num_outputs, is_last=False)
            num_tokens += number - num_before
            if not num_before:
                flight.first_token_at = at
                num_prompt_tokens += flight.num_computed_prompt_tokens
                recorder.first_token(flight, due_at - flight.arrived_at)
            else:
                gap = at - flight.last_token_at
                gaps[gap] = gaps.get(gap, 0) + 1
            flight.last_token_at = at
            if number < flight.request.output_tokens:
                self._send(due_at, now, flight, number, False)
        if num_tokens:
            recorder.step(num_prompt_tokens, num_tokens, gaps)
        self.tell_step(at)

    def _scheduled(self, output: EngineOutput, event: Scheduled) -> None:
        flight = self._flights.get(event.sequence.request.id)
        if flight is not None:
            flight.num_cached_tokens = event.sequence.num_cached_tokens
            flight.num_external_tokens = event.sequence.num_external_tokens
            output.recorder.scheduled(flight, event.at)

    def _preempted(self, event: Preempted) -> None:
        flight = self._flights.get(event.sequence.request.id)
        if flight is not None:
            flight.num_preemptions += 1

    def _finished(self, output: EngineOutput, event: Finished, now: Micros) -> None:
        flight = self._flights.pop(event.sequence.request.id, None)
        if flight is None:
            return
        if event.outcome in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED):
            engine, number = output.engine, flight.num_tokens
            due_at = event.at + output_delay(engine.config, engine.latency, number, output.num_outputs, is_last=True)
            output.recorder.completed(flight, due_at - flight.arrived_at, flight.reply.finish_reason)
            self._send(due_at, now, flight, number, True)
        else:
            flight.reply.fail(f"the request was {event.outcome}: {event.detail}", self._status_of(event))

    def _status_of(self, event: Finished) -> HTTPStatus:
        """What the client of a request that was not completed is told."""
        return STATUSES.get(event.outcome, HTTPStatus.BAD_REQUEST)

    def _send(self, due_at: Micros, now: Micros, flight: Flight, number: int, is_last: bool) -> None:
        """Hand over now what is due, keep the rest. What was due before has been handed over already."""
        if due_at <= now:
            self._deliver(due_at, flight, number, is_last)
        else:
            heappush(self._outbox, (due_at, next(self._numbers), flight, number, is_last))

    def _deliver(self, due_at: Micros, flight: Flight, number: int, is_last: bool) -> None:
        now_s = self._monotonic()
        self.lateness.observe(now_s - self.seconds_at(due_at), now_s)
        if is_last:
            flight.reply.finish(number)
        else:
            flight.reply.token(number)

    def fail(self, error: BaseException) -> None:
        """The engine is broken: nobody may wait for it any longer."""
        if self.failure is not None:
            return
        self.failure = error
        waiting = [*self._flights.values(), *(entry[2] for entry in self._outbox)]
        self.close()
        for flight in {id(flight): flight for flight in waiting}.values():
            flight.reply.fail(str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        self.tell_failure(error)


def _ignore_step(_at: Micros) -> None:
    """Nobody listens."""


def _ignore_failure(_error: BaseException) -> None:
    """Nobody listens."""
