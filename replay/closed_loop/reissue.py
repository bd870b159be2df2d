"""Replay by the client's own rules: requests are sent when they are due, but never more at once than its cap allows.

A load generator with a cap sends late when the server is slow. Its recorded send times are then a result of the
server's speed, and a replay that repeats them gives a simulated server the outcome that it should predict.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from blis_sim.engine.events import Event, Finished
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import CHUNK_US, LOOK_EVERY, ProgressWatch
from replay.arrivals.arrival import Arrival, Origin
from replay.simulation.measure import COMPLETED, replied_at
from replay.simulation.record import OnTokens, Record
from replay.simulation.simulate import Simulated, configs_of, refuse_endless

OnSent: TypeAlias = Callable[[Sequence, Origin], None]
"""Takes a request in the simulation and what it was made from."""


def simulate_reissued(
    simulation: Simulation,
    due: list[Arrival],
    max_concurrency: int = 0,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Send each of `due`, ascending, at its instant, or in that order as soon as fewer than `max_concurrency` are under
    way (0: no cap).

    The record has each request at the instant it was sent. A request that waits for its turn is sent a microsecond
    after a reply has reached the client. `on_finished` is called once for each request that ends, `on_tokens` for each
    that completes. Raises OptionError for a run that would never end.
    """
    record = Record(simulation, on_tokens)

    def sent(sequence: Sequence, row: Origin) -> None:
        record.arrived([sequence], [row])

    for events in reissued(simulation, due, max_concurrency, horizon_us, sent):
        ended = record.note(events)
        if on_finished is not None:
            for _ in ended:
                on_finished()
    record.close()
    return Simulated(simulation, record)


def reissued(
    simulation: Simulation,
    due: list[Arrival],
    max_concurrency: int,
    horizon_us: Micros | None,
    on_sent: OnSent,
) -> Iterator[list[Event]]:
    """Yield events in portions while `due` are sent by schedule and cap; `on_sent` is called with each sent request."""
    refuse_endless(configs_of(simulation), (arrival.request for arrival in due), horizon_us)
    client = _Client(simulation, due, max_concurrency, on_sent)
    while (next_at := client.next_at()) is not None and (horizon_us is None or next_at <= horizon_us):
        yield client.go_on(next_at, horizon_us)


class _Client:
    """The sender: requests that are due, that wait for the cap, and that are in flight."""

    def __init__(self, simulation: Simulation, due: list[Arrival], max_concurrency: int, on_sent: OnSent) -> None:
        self._simulation = simulation
        self._due = deque(due)
        self._cap = max_concurrency or len(due)
        self._on_sent = on_sent
        self._line: deque[Arrival] = deque()
        self._replies: list[Micros] = []
        """When the replies to ended requests have reached the client: a heap."""
        self._num_in_flight = 0
        self._watch = ProgressWatch(self._simulation, every=LOOK_EVERY)

    def next_at(self) -> Micros | None:
        """When something happens next, here or in the engine; None when all is done."""
        candidates = (self._acts_at(), self._simulation.next_event_at())
        return min((at for at in candidates if at is not None), default=None)

    def go_on(self, next_at: Micros, horizon_us: Micros | None) -> list[Event]:
        """Send what is to be sent at `next_at`, or let the engine work until the client has something to do."""
        acts_at = self._acts_at()
        if acts_at == next_at:
            self._act(next_at)
            return []
        # While requests wait for the cap, each step may end a request and let another one be sent.
        until = next_at if self._line else next_at + CHUNK_US
        limits = [
            until,
            *(at - 1 for at in (acts_at,) if at is not None),
            *(at for at in (horizon_us,) if at is not None),
        ]
        events = self._simulation.advance(min(limits))
        if horizon_us is None:
            self._watch.look()
        for event in events:
            if isinstance(event, Finished):
                answered = event.outcome in COMPLETED
                heapq.heappush(self._replies, replied_at(self._simulation, event) if answered else event.at)
        return events

    def _acts_at(self) -> Micros | None:
        """When the client sends next, or is allowed to."""
        due_at = self._due[0].at if self._due else None
        reply_at = self._replies[0] + 1 if self._line and self._replies else None
        return min((at for at in (due_at, reply_at) if at is not None), default=None)

    def _act(self, at: Micros) -> None:
        while self._replies and self._replies[0] < at:
            heapq.heappop(self._replies)
            self._num_in_flight -= 1
        while self._due and self._due[0].at == at:
            self._line.append(self._due.popleft())
        while self._line and self._num_in_flight < self._cap:
            arrival = self._line.popleft()
            self._num_in_flight += 1
            self._on_sent(self._simulation.submit(arrival.request, at), arrival.row)
