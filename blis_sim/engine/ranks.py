"""Data-parallel ranks: engines with queues and KV caches of their own behind one endpoint.

Ranks of a model without experts step independently; `lockstep_ranks` has those that share experts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from heapq import heappop, heappush
from itertools import count

from blis_sim.engine.core import Engine
from blis_sim.engine.dp_balance import LoadReports, RankBalancer, load_of
from blis_sim.engine.events import Event, Finished, StepDone
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros


class RankGroup(ABC):
    """All ranks of one deployment. A group takes the time as one engine does, and passes it to every engine."""

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        self.now: Micros | None = None
        """The instant up to which the group has been advanced; None before the first time."""
        self._engines = tuple(engines)
        self._balancer = RankBalancer(len(engines))
        self._arriving: list[tuple[Micros, Micros, int, Sequence, int | None]] = []
        """Requests without a rank: instant of the assignment, arrival, number, sequence, and the rank they name."""
        self._aborts: list[tuple[Micros, int, str, Outcome]] = []
        self._numbers = count()
        self._rank_of: dict[str, int] = {}
        """The rank of each request that has not ended, `NOWHERE` before it is assigned."""
        self._sequences: dict[str, Sequence] = {}
        """Requests without a rank, by id."""
        self._events: list[tuple[int, Event]] = []

    @property
    def instances(self) -> tuple[Engine, ...]:
        """The engines of all ranks."""
        return self._engines

    @property
    def clock(self) -> Micros:
        """Instant of the last event: the end of the simulated run."""
        passed = [at for at, *_ in self._arriving if self.now is not None and at <= self.now]
        return max([*(engine.clock for engine in self._engines), *passed])

    def queueing_time(self, request: Request) -> Micros:
        """Return the time from the arrival of a request until it joins the wait queue of a rank."""
        return self._engines[0].queueing_time(request)

    def submit(self, request: Request, at: Micros, rank: int | None = None) -> Sequence:
        """Let `request` arrive at `at`; without a `rank` it is assigned to the least loaded rank.

        Raises ValueError if it would have been assigned by now, and for an id still in use.
        """
        queued_at = at + self.queueing_time(request)
        self._check_is_ahead(queued_at)
        if request.id in self._rank_of:
            raise ValueError(f"request {request.id!r} is still in the engine")
        sequence = Sequence(request, at, NOWHERE)
        self._rank_of[request.id] = NOWHERE
        self._sequences[request.id] = sequence
        heappush(self._arriving, (queued_at, at, next(self._numbers), sequence, rank))
        return sequence

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Let each of `requests` arrive at its instant."""
        return [self.submit(request, at) for request, at in zip(requests, instants, strict=True)]

    def abort(self, request_id: str, at: Micros, outcome: Outcome = Outcome.ABORTED) -> None:
        """Let the client of `request_id` hang up at `at`; ids without a live request are ignored."""
        self._check_is_ahead(at)
        rank = self._rank_of.get(request_id)
        if rank is None:
            return
        if rank == NOWHERE:
            heappush(self._aborts, (at, next(self._numbers), request_id, outcome))
        else:
            self._engines[rank].abort(request_id, at, outcome)

    def rank_of(self, request_id: str) -> int:
        """Return the rank of a request that has not ended; `NOWHERE` before it is assigned, and for unknown ids."""
        return self._rank_of.get(request_id, NOWHERE)

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        dues = [engine.next_event_at() for engine in self._engines]
        dues += [line[0][0] for line in (self._arriving, self._aborts) if line]
        dues.append(self._next_forward_at())
        return min((due for due in dues if due is not None), default=None)

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`; return the events in the order they happened."""
        return [event for _, event in self.advance_each(until)]

    def advance_each(self, until: Micros) -> list[tuple[int, Event]]:
        """Return the events of `advance`, each behind the number of its rank."""
        while (at := self.next_event_at()) is not None and at <= until:
            self._do_due(at)
        if self.now is None or until > self.now:
            self.now = until
        events, self._events = self._events, []
        events.sort(key=_instant_of)
        return events

    def _next_forward_at(self) -> Micros | None:
        """Return the next instant at which all ranks have something due together; None without one."""
        return None

    @abstractmethod
    def _do_due(self, at: Micros) -> None:
        """Do all of one instant."""

    @abstractmethod
    def _update_loads(self, at: Micros) -> None:
        """Pass the reports that are due by `at` to the balancer."""

    def _note(self, rank: int, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self._rank_of.pop(event.sequence.request.id, None)
                self._balancer.finished(rank)
            self._events.append((rank, event))

    def _process_arrivals(self, at: Micros) -> None:
        """Assign the requests that are due to their ranks, and process the hang-ups that are due."""
        arriving, hang_ups = self._arriving, self._aborts
        while arriving and arriving[0][0] <= at:
            _, _, _, sequence, named = heappop(arriving)
            if sequence.outcome is not None:
                continue
            self._update_loads(at)
            if named is None:
                named = self._balancer.choose()
            else:
                self._balancer.send_to(named)
            request_id = sequence.request.id
            sequence.instance = self._rank_of[request_id] = named
            del self._sequences[request_id]
            self._engines[named].enter(sequence, sequence.arrived_at)
        while hang_ups and hang_ups[0][0] <= at:
            _, _, request_id, outcome = heappop(hang_ups)
            self._execute_abort(request_id, outcome, at)

    def _execute_abort(self, request_id: str, outcome: Outcome, at: Micros) -> None:
        rank, sequence = self._rank_of.get(request_id), self._sequences.pop(request_id, None)
        if sequence is not None:
            del self._rank_of[request_id]
            sequence.outcome = outcome
            self._events.append((0, Finished(at, sequence, outcome)))
        elif rank is not None:
            self._engines[rank].abort(request_id, at, outcome)

    def _check_is_ahead(self, at: Micros) -> None:
        if self.now is not None and at <= self.now:
            raise ValueError(f"the engine has already done everything up to {self.now} us, so not at {at} us")


class IndependentRanks(RankGroup):
    """Ranks that step independently, as those of a model without experts do.

    Each rank reports its load at the end of a step. Cost of an instant: O(ranks).
    """

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """Raises ValueError for engines that do not report their steps."""
        super().__init__(engines)
        if not all(engine.reports_steps for engine in engines):
            raise ValueError("a rank reports its load at the end of a step, so its engine must report steps")
        self._reports = LoadReports(len(engines))

    def _do_due(self, at: Micros) -> None:
        self._process_arrivals(at)
        for number, engine in enumerate(self._engines):
            due_at = engine.next_event_at()
            if due_at is None or due_at > at:
                continue
            events = engine.advance(at)
            self._note(number, events)
            if any(isinstance(event, StepDone) for event in events):
                self._reports.report(number, load_of(engine.stats), at)

    def _update_loads(self, at: Micros) -> None:
        while (due_at := self._reports.due_at()) is not None and due_at <= at:
            self._balancer.update_loads(self._reports.loads_due(due_at))


def _instant_of(numbered: tuple[int, Event]) -> Micros:
    return numbered[1].at
