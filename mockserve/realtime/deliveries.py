"""Delivery of engine events: replies are called when events are due, and each stream writes once per wake."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from http import HTTPStatus
from itertools import count, pairwise
from typing import Protocol

from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import OutputOverheads, OutputQueue, output_overheads
from blis_sim.engine.events import BatchDone, CacheChanged, Event, Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from mockserve.metrics.counters import Lateness
from mockserve.realtime.in_flight import ENDED, FlightRecorder, InFlightRequest
from mockserve.realtime.timer import BacklogSlices, Clock

MAX_QUIET_TURNS = 16
"""Turns of the event loop for which a wake waits until no bytes are received, if time jumps."""
MAX_READING_TURNS = 3
"""Turns for which a wake waits at a set speed, so that a request is submitted before the engine passes it."""
HEADS_WAIT_S = 0.1
"""Minimum wait of a stream's head for its first event if time jumps."""


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
        self.num_received = 0
        """Number of reads from connections."""
        self._num_received_at_check = 0
        """The value of `num_received` at the last check."""
        self._num_turns_waited = 0
        """Consecutive checks that found new bytes."""
        self._monotonic = monotonic
        self._departing: list[BufferedStream] = []
        self._new: list[PendingHead] = []
        """Streams with possibly unsent heads."""
        self._waiting: list[PendingHead] = []
        """Streams with possibly unsent heads that were new at the previous check."""

    def hold(self) -> None:
        """Begin buffering frames until `release`."""
        self.is_held = True

    def add(self, departure: BufferedStream) -> None:
        """Register a stream that has buffered its first frame."""
        self._departing.append(departure)

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
        """Write all buffered frames, in the order of each stream's first frame."""
        self.is_held = False
        if not self._departing:
            return
        departing, self._departing = self._departing, []
        if not self._is_timed:
            for each in departing:
                each.leave()
            return
        monotonic, observe = self._monotonic, self.lateness.observe
        for each in departing:
            num_frames = each.leave()
            now_s = monotonic()
            observe(now_s - each.due_s, now_s, num_frames)

    def has_received_bytes(self, most_turns: int) -> bool:
        """Whether bytes were received since the last check, so that requests may be about to be submitted.

        A caller that waits for False waits at most `most_turns` turns.
        """
        if self.num_received == self._num_received_at_check or self._num_turns_waited >= most_turns:
            self._num_turns_waited = 0
            return False
        self._num_received_at_check = self.num_received
        self._num_turns_waited += 1
        return True

    def measure(self) -> None:
        """Record the lateness of a frame that is not sent through a stream."""
        if self._is_timed:
            now_s = self._monotonic()
            self.lateness.observe(now_s - self.due_s, now_s)


_logger = logging.getLogger(__name__)

STATUSES: Mapping[Outcome, HTTPStatus] = {
    Outcome.REJECTED: HTTPStatus.TOO_MANY_REQUESTS,
    Outcome.EVICTED: HTTPStatus.TOO_MANY_REQUESTS,
    Outcome.FAILED: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""HTTP status by outcome; any other outcome is an error of the client."""


def ignore_batch(_batch: BatchDone) -> None:
    """No-op default."""


def _ignore_cache_changes(_changes: SequenceOf[CacheChange]) -> None:
    """No-op default."""


@dataclass(slots=True)
class EngineOutput:
    """One engine with listeners to its output."""

    engine: Engine
    recorder: FlightRecorder
    on_cache_changes: Callable[[SequenceOf[CacheChange]], None] = _ignore_cache_changes
    """Called with the changes of the prefix cache after each step."""
    on_batch: Callable[[BatchDone], None] = ignore_batch
    """Called with the batch of each step before its tokens; the engine reports batches on request."""
    num_outputs: int = 0
    """Number of tokens of the latest step."""
    queue: OutputQueue = field(init=False)
    """Queue of the simulated API server process that sends the engine's tokens."""
    overheads: OutputOverheads = field(init=False)
    """Delays of the engine's tokens."""

    def __post_init__(self) -> None:
        self.queue = OutputQueue(self.engine.latency)
        self.overheads = output_overheads(self.engine.config, self.engine.latency)


class Deliveries:
    """Requests in flight, and their generated tokens that are not due yet.

    Callers pass the present instant together with events.
    """

    def __init__(self, wire: WriteCoalescer, clock: Clock, slices: BacklogSlices) -> None:
        """`slices` records the cost of delivering tokens."""
        self.wire = wire
        """Coalesces the writes of streams and measures their lateness."""
        self.seconds_at = clock.seconds_at
        """Return the reading of the monotonic clock at a simulated instant."""
        self._clock = clock
        self._slices = slices
        self._flights: dict[str, InFlightRequest] = {}
        self._outbox: list[tuple[Micros, int, InFlightRequest, int, bool]] = []
        self._numbers = count()

    @property
    def num_unfinished_requests(self) -> int:
        """Requests whose last token the engine has not produced yet."""
        return len(self._flights)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have no token yet. Cost: O(requests)."""
        return sum(flight.request.input_tokens for flight in tuple(self._flights.values()) if not flight.num_tokens)

    @property
    def request_ids(self) -> Collection[str]:
        """Return the ids of the requests in flight."""
        return self._flights.keys()

    def _all_waiting(self) -> Collection[InFlightRequest]:
        """Requests whose replies have not ended."""
        waiting = [*self._flights.values(), *(entry[2] for entry in self._outbox)]
        return {id(flight): flight for flight in waiting}.values()

    def _withdraw(self, flights: Iterable[InFlightRequest]) -> None:
        """Cancel all undelivered tokens of the requests, which would follow their end."""
        leaving = set(map(id, flights))
        self._outbox = [entry for entry in self._outbox if id(entry[2]) not in leaving]
        heapify(self._outbox)

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
            self._preempted(event)
        elif isinstance(event, CacheChanged):
            output.on_cache_changes(event.changes)
        elif isinstance(event, Finished):
            self._finished(output, event, now)
        elif isinstance(event, BatchDone):
            output.on_batch(event)

    def _step_done(self, output: EngineOutput, event: StepDone, now: Micros) -> None:
        """Record the tokens of a step; tokens recomputed after a preemption are not sent again."""
        at, index, flights, overheads = event.at, event.index, self._flights, output.overheads
        gaps: dict[Micros, int] = {}
        output.num_outputs = num_outputs = len(event.emitted)
        overhead_us, token_overhead_us = overheads.step_us + num_outputs * overheads.sequence_us, overheads.token_us
        due_at = at + overhead_us
        turn_us = output.queue.turn_us
        wait_us = output.queue.enter(at, num_outputs)
        self.wire.due_s = self.seconds_at(due_at)
        num_tokens = num_prompt_tokens = 0
        late: list[tuple[Micros, InFlightRequest, int, Sequence | None]] = []
        """Tokens from the first that ends a request on, with the sequences that end. Choices of one reply come in the
        order of the batch, and requests end after their last step is recorded."""
        for sequence in event.emitted:
            wait_us += turn_us
            flight = flights.get(sequence.request.id)
            if flight is None:
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
                num_prompt_tokens += flight.num_computed_prompt_tokens
                flight.first_token_latency_us = due_at - flight.arrived_at
                output.recorder.first_token(flight, flight.first_token_latency_us)
            flight.last_token_at = at
            has_ended = number >= flight.request.output_tokens
            if late or has_ended:
                late.append((due_at, flight, number, sequence if has_ended else None))
            else:
                self._send_token(due_at, now, flight, number)
        if num_tokens:
            output.recorder.step(num_prompt_tokens, num_tokens, gaps)
        self._slices.record_step(event, gaps, len(flights))
        for due_at, flight, number, ended in late:
            if ended is None:
                self._send_token(due_at, now, flight, number)
            else:
                self._finished(output, Finished(at, ended, Outcome.COMPLETED), now)

    def _send_token(self, due_at: Micros, now: Micros, flight: InFlightRequest, number: int) -> None:
        """Deliver a token that does not end its request, if it is due."""
        if due_at > now:
            heappush(self._outbox, (due_at, next(self._numbers), flight, number, False))
            return
        try:
            flight.receiver.token(number)
        except Exception:  # noqa: BLE001  (a fault in one reply ends that reply alone)
            _fail_reply(flight)

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
                flight.receiver.tokens(num_before + 1, flight.num_tokens)
            except Exception:  # noqa: BLE001  (a fault in one reply ends that reply alone)
                _fail_reply(flight)
        num_unfinished_requests = sum(gaps.values())
        output.recorder.step(0, num_unfinished_requests, gaps)
        for before, at in pairwise(ends):
            output.recorder.step(0, num_unfinished_requests, {at - before: num_unfinished_requests})

    def _scheduled(self, output: EngineOutput, event: Scheduled) -> None:
        flight = self._flights.get(event.sequence.request.id)
        if flight is not None:
            # vLLM counts a prompt found whole outside as cached whole, though its last token is computed here.
            recomputed = int(_is_found_whole_outside(event.sequence))
            flight.num_cached_tokens = event.sequence.num_cached_tokens + recomputed
            flight.num_external_tokens = event.sequence.num_external_tokens + recomputed
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
            overheads, number = output.overheads, flight.num_tokens
            due_at = event.at + overheads.step_us + output.num_outputs * overheads.sequence_us
            due_at += number * overheads.token_us + overheads.last_us + flight.turn_us
            flight.e2e_latency_us = due_at - flight.arrived_at
            output.recorder.completed(flight, flight.e2e_latency_us, flight.receiver.finish_reason)
            if due_at <= now:
                self._deliver(due_at, flight, number, True)
            else:
                heappush(self._outbox, (due_at, next(self._numbers), flight, number, True))
        else:
            flight.receiver.fail(f"the request was {event.outcome}: {event.detail}", self._status_of(event))

    def _status_of(self, event: Finished) -> HTTPStatus:
        """Return the error for the client of a request that was not completed."""
        return STATUSES.get(event.outcome, HTTPStatus.BAD_REQUEST)

    def _deliver(self, due_at: Micros, flight: InFlightRequest, number: int, is_last: bool) -> None:
        self.wire.due_s = self.seconds_at(due_at)
        try:
            if not is_last:
                flight.receiver.token(number)
                return
            if not flight.receiver.is_streamed:
                self.wire.measure()
            flight.receiver.finish(number)
        except Exception:  # noqa: BLE001  (a fault in one reply ends that reply alone)
            _fail_reply(flight)


def _is_found_whole_outside(sequence: Sequence) -> bool:
    """Whether another instance or CPU memory had the whole prompt of a request."""
    request = sequence.request
    if not sequence.num_external_tokens or sequence.num_cached_tokens < request.input_tokens - 1:
        return False
    return request.external is None or request.external.num_tokens >= request.input_tokens


def _fail_reply(flight: InFlightRequest) -> None:
    """End a reply that failed to be written with a server error, so that other replies are unaffected."""
    _logger.exception("the reply to %s could not be written", flight.request.id)
    receiver, flight.receiver = flight.receiver, ENDED
    with suppress(Exception):
        receiver.fail("the reply could not be written", HTTPStatus.INTERNAL_SERVER_ERROR)
