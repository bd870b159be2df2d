"""A generated workload in virtual time: requests known up front, and those that wait for replies."""

import heapq
from collections.abc import Callable
from itertools import count

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.engine.virtual import CHUNK_US
from replay.arrivals.arrival import Arrival
from replay.arrivals.recorded import Arrivals, arrivals_of_rows
from replay.arrivals.synthetic import GeneratedArrivals, arrival_of
from replay.closed_loop.closed_loop import run_closed_loop
from replay.closed_loop.rounds import RecordedRounds
from replay.simulation.record import OnTokens
from replay.simulation.simulate import Simulated, simulate
from traces.workload import Session, Workload, WorkloadRequest


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
