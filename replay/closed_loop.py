"""The closed loop in virtual time: requests of a workload or of a recording that wait for earlier replies."""

import heapq
from collections.abc import Callable, Container, Iterable
from itertools import count
from typing import Protocol, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.events import Finished
from blis_sim.engine.simulation import CHECK_EVERY, CHUNK_US, ProgressWatch, Simulation
from blis_sim.engine.units import Micros
from replay.arrivals import Arrival, Arrivals, arrivals_of_rows
from replay.simulation.measure import COMPLETED, replied_at
from replay.simulation.record import OnTokens, Record
from replay.simulation.simulate import Simulated, simulate
from replay.synthetic_arrivals import GeneratedArrivals, arrival_of
from traces import TraceRow
from traces.collector import gc_disabled
from traces.graph import dependencies_of
from traces.workload import Session, Workload, WorkloadRequest

Conversation = TypeVar("Conversation")


class WaitingQueue(Protocol[Conversation]):
    """Requests in order of arrival, to which conversations add as their replies come."""

    least_pause_us: Micros
    """No conversation sends sooner after a reply than this; at least 1."""

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        ...

    def pop(self, number: int) -> tuple[Arrival, Conversation | None]:
        """Return the next request, with this number, and its conversation if another request is to follow."""
        ...

    def on_reply(self, conversation: Conversation, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a conversation, a pause after its reply."""
        ...


@gc_disabled()
def run_closed_loop(
    simulation: Simulation,
    queue: WaitingQueue[Conversation],
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
    waiting: dict[str, Conversation] = {}
    watch = ProgressWatch(simulation, every=CHECK_EVERY)
    while (next_at := _earliest(queue.next_at(), simulation.next_event_at())) is not None:
        if horizon_us is not None and next_at > horizon_us:
            break
        # Arrivals at an instant are submitted before the simulation advances to that instant.
        while queue.next_at() == next_at:
            arrival, conversation = queue.pop(len(record))
            if conversation is not None:
                waiting[arrival.request.id] = conversation
            record.arrived([simulation.submit(arrival.request, arrival.at)], [arrival.row])
        until = next_at + (queue.least_pause_us if waiting else CHUNK_US) - 1
        for finished in record.note(simulation.advance(_least(until, horizon_us, queue.next_at()))):
            if on_finished is not None:
                on_finished()
            conversation = waiting.pop(finished.sequence.request.id, None)
            if conversation is not None and finished.outcome in COMPLETED:
                queue.on_reply(conversation, replied(simulation, finished), finished.sequence.num_output_tokens)
        if horizon_us is None:
            watch.check()
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


class _RequestNode:
    """A request, its dependents, and `ready_at`, the latest arrival of a reply that it waits for."""

    __slots__ = ("arrival", "dependents", "num_pending", "pause_us", "ready_at")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.pause_us: Micros = 0
        self.num_pending = 0
        self.ready_at: Micros = 0
        self.dependents: list[_RequestNode] = []

    def add_dependencies(self, dependencies: Iterable["_RequestNode"], pause_us: Micros) -> None:
        """Make the request wait for the replies to all of `dependencies`, and then for a pause."""
        self.pause_us = pause_us
        for other in dependencies:
            other.dependents.append(self)
            self.num_pending += 1


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
        self._heap: list[tuple[Micros, int, _RequestNode]] = []
        self._order = 0
        nodes = [_RequestNode(arrival) for arrival in arrivals.arrivals]
        rows = [arrival.row for arrival in arrivals.arrivals if isinstance(arrival.row, TraceRow)]
        waits = dependencies_of(
            rows, is_real=is_real, think_time_us=think_time_us, fixed_sessions=fixed_sessions, with_lag=is_real
        )
        for place, wait in waits.items():
            nodes[place].add_dependencies([nodes[each] for each in wait.places], wait.pause_us)
            self.least_pause_us = min(self.least_pause_us, wait.pause_us)
        for place, node in enumerate(nodes):
            if place not in waits:
                self._push(node)

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap else None

    def pop(self, _number: int) -> tuple[Arrival, _RequestNode | None]:
        """Return the next request, and its node if other requests wait for its reply."""
        _, _, node = heapq.heappop(self._heap)
        return node.arrival, node if node.dependents else None

    def on_reply(self, node: _RequestNode, replied_at: Micros, _num_replied_tokens: int) -> None:
        """Send the requests whose last missing reply this is, each after its pause."""
        for each in node.dependents:
            each.ready_at = max(each.ready_at, replied_at)
            each.num_pending -= 1
            at = each.ready_at + each.pause_us
            if not each.num_pending and (self._horizon_us is None or at <= self._horizon_us):
                each.arrival = _moved(each.arrival, at)
                self._push(each)

    def _push(self, node: _RequestNode) -> None:
        self._order += 1
        heapq.heappush(self._heap, (node.arrival.at, self._order, node))


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
        queue = _SessionQueue(workload, config)
        return run_closed_loop(simulation, queue, horizon_us, on_finished, on_tokens)
    arrivals = GeneratedArrivals(workload.requests, config)
    return simulate(simulation, arrivals, horizon_us, on_finished, on_tokens)


class _SessionProgress:
    """The progress of a session: the request that was sent last, and the next round, None at the end."""

    __slots__ = ("_later", "next_round", "previous", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.previous = session.first
        self._later = iter(session.later)
        self.next_round = next(self._later, None)

    def next_request(self, arrival_us: Micros, num_replied_tokens: int) -> WorkloadRequest:
        """The next request, after a reply of so many tokens."""
        assert self.next_round is not None
        self.previous = self.session.next_request(self.previous, num_replied_tokens, self.next_round, arrival_us)
        self.next_round = next(self._later, None)
        return self.previous


class _SessionQueue:
    """Requests in order of arrival, in order of entry where equal; sessions add to it as their replies come."""

    def __init__(self, workload: Workload, config: EngineConfig) -> None:
        self._config = config
        self.least_pause_us: Micros = CHUNK_US
        """No session sends sooner after a reply than this; at least 1."""
        self._numbers = count()
        self._remaining = workload.max_requests
        self._horizon_us = workload.horizon_us
        self._heap: list[tuple[Micros, int, WorkloadRequest, _SessionProgress | None]] = []
        for request in workload.requests:
            self._push(request, None)
        for session in workload.sessions:
            self._push(session.first, _SessionProgress(session))

    def next_at(self) -> Micros | None:
        """When the next request arrives; None when nothing is known to come."""
        return self._heap[0][0] if self._heap and self._remaining != 0 else None

    def pop(self, number: int) -> tuple[Arrival, _SessionProgress | None]:
        """The next request, with its session if another round is to follow."""
        if self._remaining is not None:
            self._remaining -= 1
        _, _, request, conversation = heapq.heappop(self._heap)
        return arrival_of(request, number, self._config), conversation

    def on_reply(self, conversation: _SessionProgress, replied_at: Micros, num_replied_tokens: int) -> None:
        """Send the next request of a session, a pause after its reply, unless that is after the workload's end."""
        assert conversation.next_round is not None
        arrival_us = replied_at + max(1, conversation.next_round.think_time_us)
        if self._horizon_us is None or arrival_us <= self._horizon_us:
            self._push(conversation.next_request(arrival_us, num_replied_tokens), conversation)

    def _push(self, request: WorkloadRequest, conversation: _SessionProgress | None) -> None:
        if conversation is not None and conversation.next_round is not None:
            self.least_pause_us = min(self.least_pause_us, max(1, conversation.next_round.think_time_us))
        else:
            conversation = None
        heapq.heappush(self._heap, (request.arrival_us, next(self._numbers), request, conversation))
