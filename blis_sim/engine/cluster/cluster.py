"""A cluster: several instances behind one endpoint, driven through the same methods as one engine."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

from blis_sim.engine.cluster.admission import AdmissionPolicy, FunctionPolicy, always_admit
from blis_sim.engine.cluster.batch_dispatch import dispatch_arrivals
from blis_sim.engine.cluster.event_queue import ClusterEventKind, ClusterEventQueue, RequestTable, Watchers
from blis_sim.engine.cluster.instance import Instances, InstanceState
from blis_sim.engine.cluster.routing import Choice, Router
from blis_sim.engine.cluster.settings import Freshness, Latencies
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros

Part = TypeVar("Part")
"""The class of a part of a cluster: the gateway, disaggregation, the autoscaler."""

# Reports of a cluster: counters, the decision about each request, and events without those of prefill sub-requests.

NO_INSTANCE_SERVES = "no instance takes requests"
NO_INSTANCE_PREFILLS = "no instance computes prompts"
"""Reasons, sent to clients, for which requests are rejected at routing."""

MAX_CLASSES = 1000
OTHER_CLASSES = "other"
"""Name under which rejections of further classes are counted beyond `MAX_CLASSES`."""


MOST_CHANGES = 10_000


class InstanceChange(NamedTuple):
    """The instant at which an instance changed its state, its number, and its new state."""

    at: Micros
    number: int
    state: InstanceState


@dataclass(slots=True)
class ClusterCounters:
    """Counters of requests that did not end on an instance. Only the cluster writes them."""

    num_ended: int = 0
    """Requests rejected at admission or routing, aborted by their clients, or ended at the gateway or in transfer."""
    num_rejected_at_admission: int = 0
    rejected_by_class: dict[str, int] = field(default_factory=dict)
    """Requests rejected at admission by SLO class; requests without a class count as standard."""
    num_rejected_at_routing: int = 0
    """Requests rejected because no instance takes requests."""

    def count_rejection_at_admission(self, slo_class: str) -> None:
        """Count a request that admission rejected. Clients name classes, so the number of names is bounded."""
        self.num_rejected_at_admission += 1
        name = slo_class or "standard"
        if name not in self.rejected_by_class and len(self.rejected_by_class) >= MAX_CLASSES:
            name = OTHER_CLASSES
        self.rejected_by_class[name] = self.rejected_by_class.get(name, 0) + 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a routing decision with the figures that the router used."""

    instance: str
    score: float
    num_waiting: int
    num_running: int
    num_in_flight: int
    kv_usage_fraction: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One routing decision. `regret` is the score of the best candidate minus the score of the chosen one.

    As in BLIS it is 0 without candidates to compare with.
    """

    at: Micros
    request_id: str
    instance: str
    regret: float
    candidates: tuple[Candidate, ...]
    """The best candidates, the best first."""


class DecisionLog:
    """All routing decisions of a run, each with its `num_candidates` best candidates."""

    def __init__(self, num_candidates: int = 0) -> None:
        self.decisions: list[Decision] = []
        self.num_admitted = 0
        self.num_rejected = 0
        self._num_candidates = num_candidates

    def note_admission(self, is_admitted: bool) -> None:
        """Count an admission decision."""
        self.num_admitted += is_admitted
        self.num_rejected += not is_admitted

    def note(self, request: Request, choice: Choice, state: RoutingState) -> None:
        """Record a routing decision. Without scores of the router, minus the effective load is the score."""
        scores = choice.scores
        if scores is None:
            scores = [float(-snapshot.load) for snapshot in state.candidates]
        by_score = sorted(range(len(scores)), key=lambda place: -scores[place])
        self.decisions.append(
            Decision(
                at=state.now,
                request_id=request.id,
                instance=state.candidates[choice.place].name,
                regret=max(0.0, scores[by_score[0]] - scores[choice.place]) if self._num_candidates else 0.0,
                candidates=tuple(_candidate(state, place, scores[place]) for place in by_score[: self._num_candidates]),
            )
        )


def _candidate(state: RoutingState, place: int, score: float) -> Candidate:
    snapshot = state.candidates[place]
    return Candidate(
        instance=snapshot.name,
        score=score,
        num_waiting=snapshot.num_waiting,
        num_running=snapshot.num_running,
        num_in_flight=snapshot.num_in_flight,
        kv_usage_fraction=snapshot.kv_usage_fraction,
    )


def without_prefill_sub_requests(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events without those of prefill sub-requests, which are internal to the cluster."""
    for event in events:
        if isinstance(event, Scheduled | Preempted | Finished):
            if not event.sequence.is_prefill_subrequest:
                yield event
        elif isinstance(event, StepDone) and any(sequence.is_prefill_subrequest for sequence in event.emitted):
            yield replace(event, emitted=[sequence for sequence in event.emitted if not sequence.is_prefill_subrequest])
        else:
            yield event


# A cluster: several instances behind one endpoint, driven through the same methods as one engine.
#
# A request arrives, is admitted or rejected, is routed to an instance, and is served there as by an engine alone.
# Between entries of the cluster's event queue the instances advance independently; their figures are read only when a
# decision depends on them.


class Cluster:
    """Several engines with the methods of `Engine`, so that both drivers take either.

    Admission and routing are arguments. Extensions replace `admitted`, which is called with each admitted request, or
    `place`, which is called with each routed request. They schedule actions on `event_queue`, and add `watchers`, which
    are called after each step of an instance.
    """

    def __init__(
        self,
        engines: "Iterable[Engine | RankGroup]",
        admission: AdmissionPolicy,
        router: Router,
        freshness: Freshness | None = None,
        latencies: Latencies | None = None,
        decisions: DecisionLog | None = None,
    ) -> None:
        self.now: Micros | None = None
        """The instant up to which the cluster has been advanced; None before the first time."""
        self.counters = ClusterCounters()
        self.event_queue = ClusterEventQueue()
        self.members = Instances()
        for engine in engines:
            self.members.add(engine, InstanceState.READY, 0)
        self.state = RoutingState(self.members, freshness or Freshness())
        self.state.reads_adapters = router.reads_adapters
        self.state.reads_caches = router.reads_caches
        self.admission = admission
        self.router = router
        self.decisions = decisions
        self.parts: list[object] = []
        """The parts that were added. Each imports this class, so this class knows none of theirs."""
        self.awaits_requests: list[Callable[[int], bool]] = []
        """Functions that say whether requests are in transfer to an instance."""
        self.schedules_routing = False
        """Whether routing of a request is always an entry of the event queue, as behind a gateway."""
        self.wakes = False
        """Whether an instance will be started where there is none."""
        self.vain_kills: list[Micros] = []
        """When an instance was to be killed that there was not, or not any more."""
        self.killed: list[Callable[[int, Micros], None]] = []
        """Callbacks for each instance that is killed before it was drained, with its number."""
        self.num_starting = 0
        """Number of instances that are loading and will serve."""
        self.changes: deque[InstanceChange] = deque(maxlen=MOST_CHANGES)
        """The latest changes of instances, the oldest first. Those that serve from the beginning have none for that."""
        self.leaving: set[int] = set()
        """Numbers of instances that were drained or killed, and not removed."""
        self._num_background = 0
        """Entries of the event queue that do not keep a run going."""
        self.hides_prefill_sub_requests = False
        """Whether events of prefill sub-requests are left out."""
        self.admitted: Callable[[Sequence, Micros], None] = self.dispatch
        self.place: Callable[[Sequence, int, Micros], None] = self.enter
        self.latencies = latencies or Latencies()
        self._request_table = RequestTable()
        self.departed: list[Callable[[Sequence, Micros], None]] = []
        """Callbacks for each client that hangs up before its request has reached an instance."""
        self.watchers = Watchers()
        self._events: list[Event] = []
        """The cluster's own events since the last call of `advance`."""
        self.router_reads_snapshots = router.reads_snapshots or router.reads_in_flight or decisions is not None
        """Whether routing depends on snapshots of the instances."""
        self.always_reads_snapshots = router.reads_in_flight or decisions is not None
        decides_at_once = self.latencies.admission_us == 0 and not admission.reads_snapshots
        self._arrived = self._decide if decides_at_once else self._await_decision

    def add_part(self, part: object) -> None:
        """Keep a part for `part`. A cluster has at most one part of a class."""
        self.parts.append(part)

    def part(self, kind: type[Part]) -> Part | None:
        """Return the part of a class, such as `FlowControl`, `Disaggregation` or `Autoscaler`; None without one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    @property
    def dispatches_in_batches(self) -> bool:
        """Whether routing at the arrival is the only decision about a request."""
        return (
            self.decisions is None
            and self.admission == _ALWAYS_ADMIT
            and self.latencies == _AT_ONCE
            and self.admitted == self.dispatch
            and self.place == self.enter
        )

    @property
    def instances(self) -> list[Engine]:
        """The engines of all instances that were not removed, in the order of their numbers."""
        return self.members.engines

    @property
    def engine_names(self) -> list[str]:
        """The name of each of `instances`: that of its instance, with the rank where the instance has ranks."""
        names: list[str] = []
        for member in self.members.values():
            name, engine = member.snapshot.name, member.engine
            ranks = range(len(engine.instances))
            names += [name] if isinstance(engine, Engine) else [f"{name}_rank_{rank}" for rank in ranks]
        return names

    @property
    def clock(self) -> Micros:
        """Instant of the last event of an instance: the end of the simulated run."""
        if self.now is not None:
            for member in self.members.values():
                member.engine.advance(self.now)  # nothing is due, but arrivals up to now are recorded
        return max((member.engine.clock for member in self.members.values()), default=0)

    def submit(self, request: Request, at: Micros, instance: int | None = None, engine: int | None = None) -> Sequence:
        """Let `request` arrive at `at`, which must be ahead. Raises ValueError for an id still in use.

        Returns its sequence, for reading. With `instance` or `engine`, a number of one, the request enters that
        without further decisions of the cluster; an instance of ranks chooses one itself.
        """
        self._check_is_ahead(at)
        sequence = self._request_table.new(request, at)
        if instance is None and engine is None:
            self.event_queue.add_arrivals([sequence], self._arrived)
        else:
            enters = partial(self._enter_directly, instance, engine)
            self.event_queue.add(at, ClusterEventKind.ARRIVAL, enters, sequence)
        return sequence

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Let each of `requests` arrive at its instant, which ascend; as `submit`, at less cost for each."""
        for at in instants[:1]:
            self._check_is_ahead(at)
        sequences = self._request_table.new_all(requests, instants)
        self.event_queue.add_arrivals(sequences, self._arrived)
        return sequences

    def abort(self, request_id: str, at: Micros) -> None:
        """Let the client of `request_id` hang up at `at`; ids without a live request are ignored."""
        self._check_is_ahead(at)
        self.event_queue.add(at, ClusterEventKind.ABORT, self._execute_abort, request_id)

    def add_instance(self, engine: "Engine | RankGroup", at: Micros) -> int:
        """Add an instance that takes requests from `at` on, which must be ahead. Returns its number."""
        self._check_is_ahead(at)
        number = self.members.add(engine, InstanceState.LOADING, at)
        self.event_queue.add(at, ClusterEventKind.INSTANCE_READY, self._on_ready, number)
        return number

    def drain(self, number: int, at: Micros) -> None:
        """Send no more requests to an instance from `at` on, which must be ahead; it finishes its requests."""
        self._check_is_ahead(at)
        self.event_queue.add(at, ClusterEventKind.INSTANCE_LEAVES, self.drain_now, number)

    def kill(self, number: int, at: Micros) -> None:
        """Send no more requests to an instance from `at` on, which must be ahead, and let its requests fail.

        A running request fails when the step under way would have ended. With BLIS's scheduling a completion is decided
        at the start of the last step, so a request in its last step completes.
        """
        self._check_is_ahead(at)
        self.event_queue.add(at, ClusterEventKind.INSTANCE_LEAVES, self.kill_now, number)

    def remove(self, number: int) -> bool:
        """Remove an instance that was drained or killed.

        Returns False, and changes nothing, while requests are on the instance or in transfer to it.
        """
        engine = self.members[number].engine
        is_idle = not engine.live and engine.next_event_at() is None
        if number not in self.leaving or not is_idle or any(awaits(number) for awaits in self.awaits_requests):
            return False
        self.leaving.discard(number)
        self.members.remove(number)
        self.watchers.pop(number, None)
        return True

    def queueing_time(self, _request: Request) -> Micros:
        """Return 0: a request must be submitted before its arrival, because admission may happen at once."""
        return 0

    def next_event_at(self) -> Micros | None:
        """The next instant at which something is due; None when idle."""
        mine, theirs = self.event_queue.next_at(), self.members.next_at()
        if theirs is None and len(self.event_queue) == self._num_background:
            return None
        if mine is None or theirs is None:
            return theirs if mine is None else mine
        return min(mine, theirs)

    def advance(self, until: Micros) -> list[Event]:
        """Do everything due up to and including `until`; return the events in the order they happened.

        The cluster's own events of an instant come first, then those of its instances in the order of their numbers.
        """
        self._do_due(until)
        events = [*self._events, *self.members.take_events()]
        self._events.clear()
        if self.hides_prefill_sub_requests:
            events = list(without_prefill_sub_requests(events))
        events.sort(key=_instant)
        return events

    def advance_each(self, until: Micros) -> list[tuple[int, Event]]:
        """`advance`, with the number of its engine before each event; `NOWHERE` before the cluster's own."""
        self._do_due(until)
        numbered = [(NOWHERE, self._events), *self.members.take_numbered()]
        self._events = []
        found = [(number, event) for number, events in numbered for event in self._public(events)]
        found.sort(key=_instant_of_numbered)
        return found

    def _public(self, events: list[Event]) -> Iterable[Event]:
        return without_prefill_sub_requests(events) if self.hides_prefill_sub_requests else events

    def _do_due(self, until: Micros) -> None:
        pop_due = self.event_queue.pop_due
        if self.watchers:
            self._advance_watched(until)
        in_batches = self.dispatches_in_batches
        while True:
            if in_batches and not self.watchers:
                reads, one_at_a_time = self.router_reads_snapshots, self.always_reads_snapshots
                dispatch_arrivals(
                    self.event_queue,
                    self.state,
                    self.router,
                    self.members,
                    until,
                    self.refresh_snapshots_if_needed if reads else None,
                    1 if reads and one_at_a_time else None,
                )
            if (entry := pop_due(until)) is None:
                break
            at, _, _, action, subject = entry
            action(subject, at)
            if self.watchers:
                self._advance_watched(until)
        self.members.catch_up(until)
        if self.now is None or until > self.now:
            self.now = until
        self._request_table.prune_ended()

    def add_background(self, at: Micros, due: ClusterEventKind, action: Callable[[Micros], None]) -> None:
        """Call `action` at `at` if other events keep the run going that long."""
        self._num_background += 1
        self.event_queue.add(at, due, self._do_in_background, action)

    def _do_in_background(self, action: Callable[[Micros], None], at: Micros) -> None:
        self._num_background -= 1
        action(at)

    def _advance_watched(self, until: Micros) -> None:
        """Advance from event to event, entries of the event queue first: watchers may add entries."""
        while True:
            next_at = self.event_queue.next_at()
            last = until if next_at is None or next_at > until else next_at - 1
            number = self.members.step(self.watchers, last)
            if number is not None:
                self.watchers.call(number, self.members[number].engine.now or 0)
            elif (entry := self.event_queue.pop_due(until)) is not None:
                at, _, _, action, subject = entry
                action(subject, at)
            else:
                return

    def instance_of(self, request_id: str) -> int:
        """Return the number of a request's instance; `NOWHERE` before it is routed, and for unknown ids."""
        sequence = self._request_table.get(request_id)
        if sequence is None or sequence.instance == NOWHERE:
            return NOWHERE
        return self.members.number_of(sequence.instance)

    def engine_of(self, request_id: str) -> int:
        """Return the number of a request's engine: the first of its instance before that has chosen a rank.

        It is `NOWHERE` before the request is routed, and for unknown ids.
        """
        sequence = self._request_table.get(request_id)
        return NOWHERE if sequence is None else sequence.instance

    def _enter_directly(self, instance: int | None, engine: int | None, sequence: Sequence, at: Micros) -> None:
        if sequence.outcome is not None:
            return
        number = self.members.number_of(engine) if engine is not None else instance
        member = None if number is None else self.members.get(number)
        if number is None or member is None or member.state is InstanceState.KILLED:
            self.counters.num_rejected_at_routing += 1
            self.end(sequence, Outcome.REJECTED, at, "that instance takes no requests")
        elif engine is not None:
            self.members.enter_engine(engine, sequence, at)
        else:
            self.members.enter(number, sequence, at)

    def _await_decision(self, sequence: Sequence, at: Micros) -> None:
        self.event_queue.add(at + self.latencies.admission_us, ClusterEventKind.ADMISSION, self._decide, sequence)

    def _decide(self, sequence: Sequence, at: Micros) -> None:
        """Admit or reject a request."""
        if sequence.outcome is not None:
            return
        reports = self.router_reads_snapshots and at >= self.state.reports_due_at  # which routing uses, maybe later
        self._refresh_snapshots_if(reports or self.admission.reads_snapshots, at)
        is_admitted = self.admission.admits(sequence.request, self.state)
        if self.decisions is not None:
            self.decisions.note_admission(is_admitted)
        if is_admitted:
            self.admitted(sequence, at)
            return
        self.counters.count_rejection_at_admission(sequence.request.slo_class)
        self.end(sequence, Outcome.REJECTED, at, "the cluster does not admit it")

    def dispatch(self, sequence: Sequence, at: Micros) -> None:
        """Route an admitted request after the routing latency."""
        routing_us = self.latencies.routing_us
        if routing_us or self.router_reads_snapshots or self.schedules_routing:
            self.event_queue.add(at + routing_us, ClusterEventKind.ROUTING, self._route, sequence)
        else:
            self._route(sequence, at)  # other requests admitted at this instant do not matter

    def _route(self, sequence: Sequence, at: Micros) -> None:
        if sequence.outcome is not None:
            return
        self.refresh_snapshots_if_needed(at)
        if not self.state.candidates:
            self.counters.num_rejected_at_routing += 1
            self.end(sequence, Outcome.REJECTED, at, NO_INSTANCE_SERVES)
            return
        choice = self.router.choose(sequence.request, self.state)
        if self.decisions is not None:
            self.decisions.note(sequence.request, choice, self.state)
        self.place(sequence, self.state.candidates[choice.place].instance, at)

    def enter(self, sequence: Sequence, number: int, at: Micros) -> None:
        """Enter a request at the instance `number`."""
        self.members.enter(number, sequence, at)
        if self.admission.routed is not None:
            self.admission.routed(sequence)

    def refresh_snapshots(self, at: Micros) -> None:
        """Advance the instances to just before `at` and read the reports that are due."""
        self.members.catch_up(at - 1)
        self.state.observe(at)

    def refresh_snapshots_if_needed(self, at: Micros) -> None:
        """Call `refresh_snapshots` if routing depends on reports that are due."""
        self._refresh_snapshots_if(
            self.router_reads_snapshots and (self.always_reads_snapshots or at >= self.state.reports_due_at), at
        )

    def require_reports(self, *, snapshots: bool, caches: bool, adapters: bool) -> None:
        """Make routing depend on what a second reader of reports, beside the router, depends on."""
        self.router_reads_snapshots = self.router_reads_snapshots or snapshots or caches or adapters
        self.always_reads_snapshots = True
        self.state.reads_caches = self.state.reads_caches or caches
        self.state.reads_adapters = self.state.reads_adapters or adapters

    def _refresh_snapshots_if(self, is_needed: bool, at: Micros) -> None:
        if is_needed:
            self.refresh_snapshots(at)
        else:
            self.state.now = at

    def end(self, sequence: Sequence, outcome: Outcome, at: Micros, detail: str = "") -> None:
        """End a request that is on no instance."""
        sequence.outcome = outcome
        self.counters.num_ended += 1
        self._events.append(Finished(at, sequence, outcome, detail))

    def _on_ready(self, number: int, at: Micros) -> None:
        self.mark_ready(number, at)

    def mark_loading(self, number: int, at: Micros) -> None:
        """Make an instance take no requests until it is ready."""
        self._set_state(number, InstanceState.LOADING, at)

    def mark_ready(self, number: int, at: Micros) -> None:
        """Make an instance that was loading take requests, unless it was removed."""
        if number in self.members and self.members[number].state is InstanceState.LOADING:
            self._set_state(number, InstanceState.READY, at)

    def drain_now(self, number: int, at: Micros) -> None:
        """Drain an instance: it takes no more requests."""
        if number in self.members and self.members[number].state is not InstanceState.KILLED:
            self._set_state(number, InstanceState.DRAINING, at)

    def kill_now(self, number: int | None, at: Micros) -> None:
        """Kill an instance; without a number the oldest one that serves. One that is killed already stays as it is.

        Nothing takes the place of an instance that was drained: it would have left.
        """
        if number is None:
            number = next((number for number, each in self.members.items() if each.takes_requests), None)
        if number is None or number not in self.members or self.members[number].state is InstanceState.KILLED:
            self.vain_kills.append(at)
            return
        was_drained = number in self.leaving
        self._set_state(number, InstanceState.KILLED, at)
        self.members.catch_up(at - 1)
        engine = self.members[number].engine
        for request_id in engine.live:
            engine.abort(request_id, at, Outcome.FAILED)
        self.members.update_next_event(number)
        if not was_drained:
            for killed in self.killed:
                killed(number, at)

    def _set_state(self, number: int, state: InstanceState, at: Micros) -> None:
        self.members[number].state = state
        self.changes.append(InstanceChange(at, number, state))
        if state in (InstanceState.DRAINING, InstanceState.KILLED):
            self.leaving.add(number)
        self.state.change()

    def _execute_abort(self, request_id: str, at: Micros) -> None:
        sequence = self._request_table.get(request_id)
        if sequence is None or sequence.outcome is not None or at < sequence.arrived_at:
            return
        if sequence.instance == NOWHERE:
            self.end(sequence, Outcome.ABORTED, at)
            for departed in self.departed:
                departed(sequence, at)
        else:
            self.abort_at_instance(sequence, at)

    def abort_at_instance(self, sequence: Sequence, at: Micros, outcome: Outcome = Outcome.ABORTED) -> None:
        """End a request that is on an instance, which must not have been advanced to `at` yet."""
        number = self.members.number_of(sequence.instance)
        self.members[number].engine.abort(sequence.request.id, at, outcome)
        self.members.update_next_event(number)

    def _check_is_ahead(self, at: Micros) -> None:
        if self.now is not None and at <= self.now:
            raise ValueError(f"the cluster has already done everything up to {self.now} us, so not at {at} us")


_ALWAYS_ADMIT = FunctionPolicy(always_admit)
_AT_ONCE = Latencies()
_instant = attrgetter("at")


def _instant_of_numbered(numbered: tuple[int, Event]) -> Micros:
    return numbered[1].at
