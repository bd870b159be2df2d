"""Send requests on time: each at its own instant, independent of the outcome of earlier requests."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns

from observe.client import Client
from observe.clock import Nanos, sleep_until
from observe.connection import Outcome
from observe.requests import PlannedRequest

_BUILT_AHEAD_BYTES = 256 << 20
_NO_BUILDING_BEFORE_SEND_NS = 3_000_000
_LONGEST_BURST_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A planned request with all its bytes. `request_id` is its place in the whole schedule."""

    request_id: int
    planned: PlannedRequest
    x_request_id: str
    request: bytes
    streaming: bool
    turn: str = ""
    """The last turn of its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request that has ended. Any delay after `allowed` was caused by the client itself."""

    prepared: PreparedRequest
    due: Nanos
    allowed: Nanos
    outcome: Outcome


class Dispatcher:
    """An open loop of absolute send times that calls `finished` with each request that has ended.

    With `max_concurrency` above 0, requests beyond it wait in line and are sent as others end; the times at which they
    were due stay what they are. `follow` may give other requests for one that has ended, by the instant of the
    schedule at which it did; they are sent when they are due.
    """

    def __init__(
        self,
        client: Client,
        plan: Sequence[PlannedRequest],
        prepare: Callable[[int, PlannedRequest], PreparedRequest],
        finished: Callable[[SentRequest], None],
        *,
        max_concurrency: int = 0,
        follow: Callable[[SentRequest, int], Sequence[PlannedRequest]] | None = None,
    ) -> None:
        self._follow = follow
        self._following: set[asyncio.TimerHandle] = set()
        self._origin: Nanos = 0
        self.num_planned = len(plan)
        """Number of requests sent or to be sent, as far as planned."""
        self._client = client
        self._plan = plan
        self._prepare = prepare
        self._finished = finished
        self._max_concurrency = max_concurrency
        self._ahead: deque[PreparedRequest] = deque()
        self._ahead_bytes = 0
        self._num_prepared = 0
        self._in_line: deque[tuple[PreparedRequest, Nanos]] = deque()
        self._all_due = False
        self._drained = asyncio.Event()
        self.num_sent = 0
        self.num_in_flight = 0

    @property
    def num_in_line(self) -> int:
        """Requests that are due and wait for others to end."""
        return len(self._in_line)

    def build_ahead(self, until: Nanos | None = None) -> None:
        """Build requests before their time, as many as memory is set aside for, or as there is time for."""
        while self._ahead_bytes < _BUILT_AHEAD_BYTES and self._num_prepared < len(self._plan):
            if until is not None and perf_counter_ns() >= until:
                return
            self._build_one()

    async def run(self, origin: Nanos) -> None:
        """Send everything, at times counted from `origin`, and wait until all has ended."""
        self._origin = origin
        last_pause = perf_counter_ns()
        for planned in self._plan:
            due = origin + planned.at_us * 1000
            self.build_ahead(due - _NO_BUILDING_BEFORE_SEND_NS)
            now = perf_counter_ns()
            # Behind the schedule, or in a burst, answers must be read all the same.
            if now < due or now - last_pause > _LONGEST_BURST_NS:
                await (sleep_until(due) if now < due else asyncio.sleep(0))
                last_pause = perf_counter_ns()
            if not self._ahead:
                self._build_one()
            prepared = self._ahead.popleft()
            self._ahead_bytes -= len(prepared.request)
            self._send_or_queue(prepared, due)
        self._all_due = True
        if self.num_in_flight or self._following:
            await self._drained.wait()

    def stop(self) -> int:
        """Send no more, and return how many were not sent. Requests in flight are left to the client."""
        self._in_line.clear()
        self._follow = None
        for timer in self._following:
            timer.cancel()
        return self.num_planned - self.num_sent

    def _build_one(self) -> None:
        prepared = self._prepare(self._num_prepared, self._plan[self._num_prepared])
        self._ahead.append(prepared)
        self._ahead_bytes += len(prepared.request)
        self._num_prepared += 1

    def _send_or_queue(self, prepared: PreparedRequest, due: Nanos) -> None:
        if 0 < self._max_concurrency <= self.num_in_flight:
            self._in_line.append((prepared, due))
        else:
            self._send(prepared, due, due)

    def _send(self, prepared: PreparedRequest, due: Nanos, allowed: Nanos) -> None:
        self.num_in_flight += 1
        self.num_sent += 1
        self._client.send(
            prepared.request,
            streaming=prepared.streaming,
            timeout_s=prepared.planned.timeout_us / 1e6 or None,
            finished=partial(self._ended, prepared, due, allowed),
        )

    def _ended(self, prepared: PreparedRequest, due: Nanos, allowed: Nanos, outcome: Outcome) -> None:
        self.num_in_flight -= 1
        sent = SentRequest(prepared=prepared, due=due, allowed=allowed, outcome=outcome)
        if self._follow is not None:
            for following in self._follow(sent, (outcome.ended - self._origin) // 1000):
                self._send_when_due(following)
        if self._in_line:
            waited, its_due = self._in_line.popleft()
            self._send(waited, its_due, outcome.ended)
        elif self._all_due and not self.num_in_flight and not self._following:
            self._drained.set()
        self._finished(sent)

    def _send_when_due(self, planned: PlannedRequest) -> None:
        place = self.num_planned
        self.num_planned += 1
        self._wait_and_send(place, planned, self._origin + planned.at_us * 1000)

    def _wait_and_send(self, place: int, planned: PlannedRequest, due: Nanos) -> None:
        def look_at_clock() -> None:
            self._following.discard(timer)
            # Timers count from when the loop last looked at its clock, and so may be early.
            if perf_counter_ns() < due:
                self._wait_and_send(place, planned, due)
            else:
                self._send_or_queue(self._prepare(place, planned), due)

        delay_s = max(0, due - perf_counter_ns()) / 1e9
        timer = asyncio.get_running_loop().call_later(delay_s, look_at_clock)
        self._following.add(timer)
