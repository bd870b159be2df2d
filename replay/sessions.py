"""A generated workload in virtual time: requests known up front, and those that wait for replies."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from engine.events import Event, Finished
from engine.simulation import Simulation
from engine.units import Micros
from engine.virtual import CHUNK_US
from replay.collector import no_cycle_search
from replay.measure import COMPLETED, replied_at
from replay.record import OnTokens, Record
from replay.simulate import Simulated, simulate
from replay.synthetic import GeneratedArrivals, arrival_of
from traces.workload import Session, Workload, WorkloadRequest


def simulate_workload(
    simulation: Simulation,
    workload: Workload,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Run a workload through a fresh simulation until it is drained or the horizon is reached.

    Requests are numbered in order of arrival. `on_finished` is called once for each request that ends, `on_tokens` for
    each that completes.
    """
    if workload.sessions:
        return run_sessions(simulation, workload, horizon_us, on_finished, on_tokens)
    arrivals = GeneratedArrivals(workload.requests, simulation.instances[0].config)
    return simulate(simulation, arrivals, horizon_us, on_finished, on_tokens)


@no_cycle_search()
def run_sessions(
    simulation: Simulation,
    workload: Workload,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Run a workload with sessions through a fresh simulation: each of their requests is sent when its client has
    thought about the reply before it.

    A session ends with its rounds, or with a request that was not answered.
    """
    queue = _Queue(workload)
    record = Record(simulation, on_tokens)
    config = simulation.instances[0].config
    waiting: dict[str, _Talk] = {}
    while (next_at := _earliest(queue.next_at(), simulation.next_event_at())) is not None:
        if horizon_us is not None and next_at > horizon_us:
            break
        # What arrives at an instant is there before anything is done at that instant.
        while queue.next_at() == next_at:
            request, talk = queue.pop()
            arrival = arrival_of(request, len(record), config)
            record.arrived(arrival)
            if talk is not None:
                waiting[arrival.request.id] = talk
            simulation.submit(arrival.request, arrival.at)
        until = next_at + (queue.least_pause_us if waiting else CHUNK_US) - 1
        for finished in _finished(simulation.advance(_least(until, horizon_us, queue.next_at())), record):
            if on_finished is not None:
                on_finished()
            talk = waiting.pop(finished.sequence.request.id, None)
            if talk is not None and finished.outcome in COMPLETED:
                queue.follow_up(talk, replied_at(simulation, finished), finished.sequence.num_output_tokens)
    record.close()
    return Simulated(simulation, record)


def _earliest(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _least(until: Micros, horizon_us: Micros | None, next_arrival_at: Micros | None) -> Micros:
    """How far the engine may go: to the horizon, but not to the next arrival."""
    if horizon_us is not None:
        until = min(until, horizon_us)
    return until if next_arrival_at is None else min(until, next_arrival_at - 1)


def _finished(events: Iterable[Event], record: Record) -> Iterator[Finished]:
    """The requests that ended, after all that has happened is in the record."""
    for event in events:
        record.note(event)
        if isinstance(event, Finished):
            yield event


class _Talk:
    """A session under way: the request that was sent last, and the round after it, None at the end."""

    __slots__ = ("_later", "next_round", "previous", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.previous = session.first
        self._later = iter(session.later)
        self.next_round = next(self._later, None)

    def go_on(self, arrival_us: Micros, num_replied_tokens: int) -> WorkloadRequest:
        """The next request, after a reply of so many tokens."""
        assert self.next_round is not None
        self.previous = self.session.next_request(self.previous, num_replied_tokens, self.next_round, arrival_us)
        self.next_round = next(self._later, None)
        return self.previous


class _Queue:
    """Requests in order of arrival, in order of entry where equal; sessions add to it as their replies come."""

    def __init__(self, workload: Workload) -> None:
        self.least_pause_us: Micros = CHUNK_US
        """No session sends sooner after a reply than this; at least 1."""
        self._numbers = count()
        self._remaining = workload.max_requests
        self._horizon_us = workload.horizon_us
        self._heap: list[tuple[Micros, int, WorkloadRequest, _Talk | None]] = []
        for request in workload.requests:
            self._push(request, None)
        for session in workload.sessions:
            self._push(session.first, _Talk(session))

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap and self._remaining != 0 else None

    def pop(self) -> tuple[WorkloadRequest, _Talk | None]:
        """The next request, with its session if another round is to follow."""
        if self._remaining is not None:
            self._remaining -= 1
        _, _, request, talk = heapq.heappop(self._heap)
        return request, talk

    def follow_up(self, talk: _Talk, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a session, a pause after its reply, unless that is after the workload's end."""
        assert talk.next_round is not None
        arrival_us = replied_at + max(1, talk.next_round.think_time_us)
        if self._horizon_us is None or arrival_us <= self._horizon_us:
            self._push(talk.go_on(arrival_us, num_replied_tokens), talk)

    def _push(self, request: WorkloadRequest, talk: _Talk | None) -> None:
        if talk is not None and talk.next_round is not None:
            self.least_pause_us = min(self.least_pause_us, max(1, talk.next_round.think_time_us))
        else:
            talk = None
        heapq.heappush(self._heap, (request.arrival_us, next(self._numbers), request, talk))
