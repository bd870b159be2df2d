"""The closed loop in virtual time: requests of a workload or of a recording that wait for earlier replies."""

import heapq
from collections.abc import Callable, Container, Iterable
from itertools import count
from typing import Protocol, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.events import Finished
from blis_sim.engine.simulation import CHUNK_US, LOOK_EVERY, ProgressWatch, Simulation
from blis_sim.engine.units import Micros
from replay.arrivals import Arrival, Arrivals, arrivals_of_rows
from replay.simulation.measure import COMPLETED, replied_at
from replay.simulation.record import OnTokens, Record
from replay.simulation.simulate import Simulated, simulate
from replay.synthetic_arrivals import GeneratedArrivals, arrival_of
from traces import TraceRow
from traces.collector import no_cycle_search
from traces.graph import awaited
from traces.workload import Session, Workload, WorkloadRequest

Talk = TypeVar("Talk")


class WaitingQueue(Protocol[Talk]):
    """Requests in order of arrival, to which conversations add as their replies come."""

    least_pause_us: Micros
    """No conversation sends sooner after a reply than this; at least 1."""

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        ...

    def pop(self, number: int) -> tuple[Arrival, Talk | None]:
        """Return the next request, with this number, and its conversation if another request is to follow."""
        ...

    def follow_up(self, talk: Talk, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a conversation, a pause after its reply."""
        ...


@no_cycle_search()
def run_closed_loop(
    simulation: Simulation,
    queue: WaitingQueue[Talk],
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
    replied: Callable[[Simulation, Finished], Micros] = replied_at,
) -> Simulated:
    """Send what is in the queue through a fresh simulation. A conversation ends with a request that was not answered.

    `on_finished` is called once for each request that ends, `on_tokens` for each that completes. `replied` computes
    when the reply of a completed request has reached its client.
    """
    record = Record(simulation, on_tokens)
    waiting: dict[str, Talk] = {}
    watch = ProgressWatch(simulation, every=LOOK_EVERY)
    while (next_at := _earliest(queue.next_at(), simulation.next_event_at())) is not None:
        if horizon_us is not None and next_at > horizon_us:
            break
        # Arrivals at an instant are submitted before the simulation advances to that instant.
        while queue.next_at() == next_at:
            arrival, talk = queue.pop(len(record))
            if talk is not None:
                waiting[arrival.request.id] = talk
            record.arrived([simulation.submit(arrival.request, arrival.at)], [arrival.row])
        until = next_at + (queue.least_pause_us if waiting else CHUNK_US) - 1
        for finished in record.note(simulation.advance(_least(until, horizon_us, queue.next_at()))):
            if on_finished is not None:
                on_finished()
            talk = waiting.pop(finished.sequence.request.id, None)
            if talk is not None and finished.outcome in COMPLETED:
                queue.follow_up(talk, replied(simulation, finished), finished.sequence.num_output_tokens)
        if horizon_us is None:
            watch.look()
    record.close()
    return Simulated(simulation, record)


def _earliest(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _least(until: Micros, horizon_us: Micros | None, next_arrival_at: Micros | None) -> Micros:
    """Return the instant to which the engine may advance: up to the horizon, and before the next arrival."""
    if horizon_us is not None:
        until = min(until, horizon_us)
    return until if next_arrival_at is None else min(until, next_arrival_at - 1)


class _Sent:
    """A request, its dependents, and `ready_at`, the latest arrival of a reply that it waits for."""

    __slots__ = ("arrival", "followers", "num_awaited", "pause_us", "ready_at")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.pause_us: Micros = 0
        self.num_awaited = 0
        self.ready_at: Micros = 0
        self.followers: list[_Sent] = []

    def awaits(self, others: Iterable["_Sent"], pause_us: Micros) -> None:
        """Make the request wait for the replies to all of `others`, and then for a pause."""
        self.pause_us = pause_us
        for other in others:
            other.followers.append(self)
            self.num_awaited += 1


class RecordedRounds:
    """Rows arrive as recorded, or wait for replies to other rows, as `traces.graph` derives it.

    Deadlines keep their distance to the arrival. A request is never sent where a reply that it waits for does not come,
    or where it would arrive after the horizon.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        is_real: bool,
        think_time_us: Micros | None = None,
        fixed_sessions: Container[str] = frozenset(),
        horizon_us: Micros | None = None,
    ) -> None:
        self.least_pause_us: Micros = CHUNK_US
        self._horizon_us = horizon_us
        self._heap: list[tuple[Micros, int, _Sent]] = []
        self._order = 0
        all_sent = [_Sent(arrival) for arrival in arrivals.arrivals]
        rows = [arrival.row for arrival in arrivals.arrivals if isinstance(arrival.row, TraceRow)]
        waits = awaited(
            rows, is_real=is_real, think_time_us=think_time_us, fixed_sessions=fixed_sessions, with_lag=is_real
        )
        for place, its in waits.items():
            all_sent[place].awaits([all_sent[each] for each in its.places], its.pause_us)
            self.least_pause_us = min(self.least_pause_us, its.pause_us)
        for place, sent in enumerate(all_sent):
            if place not in waits:
                self._push(sent)

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap else None

    def pop(self, _number: int) -> tuple[Arrival, _Sent | None]:
        """Return the next request, and its node if other requests wait for its reply."""
        _, _, sent = heapq.heappop(self._heap)
        return sent.arrival, sent if sent.followers else None

    def follow_up(self, sent: _Sent, replied_at: Micros, _num_replied_tokens: int) -> None:
        """Send the requests whose last missing reply this is, each after its pause."""
        for each in sent.followers:
            each.ready_at = max(each.ready_at, replied_at)
            each.num_awaited -= 1
            at = each.ready_at + each.pause_us
            if not each.num_awaited and (self._horizon_us is None or at <= self._horizon_us):
                each.arrival = _moved(each.arrival, at)
                self._push(each)

    def _push(self, sent: _Sent) -> None:
        self._order += 1
        heapq.heappush(self._heap, (sent.arrival.at, self._order, sent))


def _moved(arrival: Arrival, at: Micros) -> Arrival:
    request, row = arrival.request, arrival.row
    if request.deadline_us and isinstance(row, TraceRow):
        request = request._replace(deadline_us=request.deadline_us - row.arrival_time_us + at)
    return arrival._replace(at=at, request=request)


def simulate_workload(
    simulation: Simulation,
    workload: Workload,
    horizon_us: Micros | None = None,
    on_finished: Callable[[], None] | None = None,
    on_tokens: OnTokens | None = None,
) -> Simulated:
    """Run a workload through a fresh simulation until it is drained or the horizon is reached.

    Requests are numbered in order of arrival, those of rows as the rows are. A session ends with its rounds, or with a
    request that was not answered.
    `on_finished` is called once for each request that ends, `on_tokens` for each that completes.
    """
    config = simulation.instances[0].config
    if workload.rows:
        rounds = RecordedRounds(
            Arrivals(arrivals_of_rows(workload.rows, config), 0, 0),
            is_real=False,
            fixed_sessions=workload.fixed_sessions,
            horizon_us=workload.horizon_us,
        )
        return run_closed_loop(simulation, rounds, horizon_us, on_finished, on_tokens)
    if workload.sessions:
        queue = _Queue(workload, config)
        return run_closed_loop(simulation, queue, horizon_us, on_finished, on_tokens)
    arrivals = GeneratedArrivals(workload.requests, config)
    return simulate(simulation, arrivals, horizon_us, on_finished, on_tokens)


class _Talk:
    """The progress of a session: the request that was sent last, and the next round, None at the end."""

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

    def __init__(self, workload: Workload, config: EngineConfig) -> None:
        self._config = config
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

    def pop(self, number: int) -> tuple[Arrival, _Talk | None]:
        """The next request, with its session if another round is to follow."""
        if self._remaining is not None:
            self._remaining -= 1
        _, _, request, talk = heapq.heappop(self._heap)
        return arrival_of(request, number, self._config), talk

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
