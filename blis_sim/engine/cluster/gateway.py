"""The gateway of a cluster: admitted requests wait in its queue by its rules, and go when instances have room."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from typing import TypeAlias

from blis_sim.engine.cluster.admission import FULL_CACHE_FRACTION, LONG_QUEUE
from blis_sim.engine.cluster.admission import saturation as mean_utilization
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.event_queue import ClusterEventKind, UnfinishedList
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import Request
from blis_sim.engine.scheduler.policies import PRIORITIES
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES, SloPriorities, Urgency

# Rules of the gateway: dispatch orders, fairness among tenants, saturation detectors, and the settings that pick
# them.
#
# A new dispatch order, fairness policy or detector is a function and a row of its table. Saturation detectors decide
# during a run whether the gateway dispatches; the detectors in `traces/saturation/` judge a finished run.

NO_DEADLINE: Micros = 2**63 - 1
"""A deadline later than any instant."""


@dataclass(slots=True)
class QueuedRequest:
    """One request in the gateway's queue. The queue alone changes it."""

    sequence: Sequence
    importance: int
    """Importance of the SLO class; larger is more important, and a request below 0 may be shed."""
    tenant: str
    number: int
    """Position of the request among all requests that entered the queue."""
    entered_at: Micros
    due_at: Micros = NO_DEADLINE
    """Instant at which the SLO target is missed."""
    has_left: bool = False
    """Whether the request has left the queue: dispatched, expired, shed or aborted."""

    @property
    def is_sheddable(self) -> bool:
        return self.importance < 0


Rank: TypeAlias = tuple[int, ...]
"""The smaller rank goes first. No two requests have equal ranks."""


URGENCY = "urgency"
"""The dispatch order by priorities, which may rise while requests wait."""


@dataclass(frozen=True, slots=True)
class DispatchOrder:
    """Dispatches smaller ranks first, among all requests or only among requests of equal importance."""

    rank: Callable[[QueuedRequest], Rank]
    by_importance: bool = True
    """Whether more important requests go first, whatever their ranks."""


def first_come(waiting: QueuedRequest) -> Rank:
    """Rank by order of arrival."""
    return (waiting.number, 0)


def earliest_deadline(waiting: QueuedRequest) -> Rank:
    """Rank by the instant at which the SLO target is missed; requests without a target go last, in order of arrival."""
    return (waiting.due_at, waiting.number)


def most_urgent(waiting: QueuedRequest) -> Rank:
    """Rank by priority, then by deadline, then by arrival."""
    return (waiting.sequence.priority, waiting.due_at, waiting.number)


DISPATCH_ORDERS: dict[str, DispatchOrder] = {
    "fifo": DispatchOrder(first_come),
    "priority": DispatchOrder(first_come),
    "slo-deadline": DispatchOrder(earliest_deadline),
    "global-fifo": DispatchOrder(first_come, by_importance=False),
    URGENCY: DispatchOrder(most_urgent, by_importance=False),
}
"""Dispatch orders by name. BLIS's `fifo` goes by importance, too: only `global-fifo` does not."""


DEFAULT_TENANT = "default"
"""The tenant of requests that name none."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """Requests of one flow stay in the dispatch order; flows take turns."""

    flow_of: Callable[[str], str]
    """Maps a tenant to its flow."""
    next_flow: Callable[[SequenceOf[str], str], str]
    """Picks the next flow, given the flows with requests, ascending, and the flow that was picked last."""


def one_flow(_tenant: str) -> str:
    """Put all requests into one flow."""
    return ""


def flow_by_tenant(tenant: str) -> str:
    """Give each tenant a flow of its own."""
    return tenant or DEFAULT_TENANT


def first_flow(flows: SequenceOf[str], _latest: str) -> str:
    return flows[0]


def flow_after(flows: SequenceOf[str], latest: str) -> str:
    """Return the first flow after `latest`; the first flow follows the last."""
    return flows[bisect_right(flows, latest) % len(flows)]


FAIRNESS: dict[str, Fairness] = {
    "global-strict": Fairness(one_flow, first_flow),
    "round-robin": Fairness(flow_by_tenant, flow_after),
}
"""Fairness policies by name."""


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """Figures of an instance at which it counts as saturated."""

    num_waiting: float = LONG_QUEUE
    kv_usage_fraction: float = FULL_CACHE_FRACTION
    max_in_flight: int = 100
    """Requests in flight per instance."""


SaturationMeasure: TypeAlias = Callable[[RoutingState, SaturationLimits], float]
"""Computes the saturation of the instances from their snapshots; the gateway dispatches below 1."""


def never(_state: RoutingState, _limits: SaturationLimits) -> float:
    """Return 0: no request is held back."""
    return 0.0


def utilization(state: RoutingState, limits: SaturationLimits) -> float:
    """Return the mean over instances of the larger of queue and KV cache usage, each divided by its limit."""
    return mean_utilization(state, limits.num_waiting, limits.kv_usage_fraction)


def concurrency(state: RoutingState, limits: SaturationLimits) -> float:
    """Return requests in flight divided by their limit; 1 without instances."""
    loads = state.candidates
    if not loads:
        return 1.0
    return sum(load.num_in_flight for load in loads) / (len(loads) * limits.max_in_flight)


def places(state: RoutingState, _limits: SaturationLimits) -> float:
    """Return the share of taken places on the instance that has most of them free; 1 without instances."""
    loads = state.candidates
    return min((load.num_in_flight / state.config_of(load.instance).max_num_seqs for load in loads), default=1.0)


@dataclass(frozen=True, slots=True)
class SaturationDetector:
    """A saturation measure, and whether it depends on the instances' snapshots."""

    saturation: SaturationMeasure
    reads_loads: bool = True


SATURATION_DETECTORS: dict[str, SaturationDetector] = {
    "never": SaturationDetector(never, reads_loads=False),
    "utilization": SaturationDetector(utilization),
    "concurrency": SaturationDetector(concurrency),
    "places": SaturationDetector(places),
}
"""Saturation detectors by name."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The most requests that may wait; 0 is no limit."""

    max_waiting: int = 0
    max_waiting_per_band: int = 0
    sheds: bool = False
    """Whether a full queue drops a less important sheddable request to make room."""
    usage_limit: float = 1.0
    """Saturation at which the least important band is held back; the most important band is held back at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlSettings:
    """Rules by name, and limits. Raises EngineError for unknown names and for negative times."""

    dispatch_order: str = "fifo"
    fairness: str = "global-strict"
    saturation_detector: str = "never"
    queue: QueueLimits = field(default_factory=QueueLimits)
    saturation: SaturationLimits = field(default_factory=SaturationLimits)
    slo_targets_us: Mapping[str, Micros] = field(default_factory=dict)
    """SLO targets by SLO class, for requests without a target of their own."""
    ttl_us: Micros = 0
    """The longest wait of a request; 0 is no limit."""
    evicts_in_flight: bool = False
    """Whether a saturated cluster evicts sheddable requests for others that wait."""
    tick_interval_us: Micros = 0
    """Time between attempts to dispatch while requests wait; with 0 each request that ends causes an attempt."""

    def __post_init__(self) -> None:
        for name, known in (
            ("dispatch_order", DISPATCH_ORDERS),
            ("fairness", FAIRNESS),
            ("saturation_detector", SATURATION_DETECTORS),
        ):
            if (value := getattr(self, name)) not in known:
                raise EngineError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        for name in ("ttl_us", "tick_interval_us"):
            if (time_us := getattr(self, name)) < 0:
                raise EngineError(f"{name} must be at least 0, got {time_us}")


# The queue of the gateway, in front of all instances, with priorities and deadlines as on the instances.


class GatewayUrgency:
    """Gives a request its priority and deadline when it enters, and raises it while it waits here.

    An instance computes both anew, so a rise on the instance has an instant of its own.
    """

    __slots__ = ("_is_relative", "_present", "_priority", "_settings", "_urgency")

    def __init__(self, config: EngineConfig) -> None:
        """`config` is that of the instances."""
        self._settings = config.urgency
        self._is_relative = config.scheduler == "priority-slo-target"
        self._priority = PRIORITIES[config.priority_policy](config.slo_priorities, config.age_scores)
        self._present: set[Sequence] = set()
        rises = config.priority_policy == "slo-urgency"
        self._urgency = Urgency(config.urgency, self._present.__contains__) if rises else None

    def enter(self, sequence: Sequence) -> Micros:
        """Note a request that begins to wait. Returns its place among requests of equal priority: its deadline, or the
        time from arrival to deadline where instances order by that."""
        sequence.priority = self._priority(sequence.request, sequence.arrived_at)
        sequence.deadline_at = self._settings.deadline_of(sequence.request, sequence.arrived_at)
        self._present.add(sequence)
        if self._urgency is not None:
            self._urgency.watch(sequence)
        return sequence.deadline_at - sequence.arrived_at if self._is_relative else sequence.deadline_at

    def leave(self, sequence: Sequence) -> None:
        """Forget a request that does not wait here any more."""
        self._present.discard(sequence)
        if self._urgency is not None:
            self._urgency.forget(sequence)

    def rise(self, now: Micros) -> list[Sequence]:
        """Give waiting requests all rises due by `now`. Returns those that have risen."""
        return [] if self._urgency is None else self._urgency.rise(now)


class Band:
    """One heap per flow. A request removed from the middle is passed over when its turn comes. Cost: O(log waiting)."""

    __slots__ = ("_fairness", "_flows", "_heaps", "_latest", "_present", "_rank", "num_waiting")

    def __init__(self, order: DispatchOrder, fairness: Fairness) -> None:
        self.num_waiting = 0
        self._rank = order.rank
        self._fairness = fairness
        self._heaps: dict[str, list[tuple[Rank, QueuedRequest]]] = {}
        self._present: dict[str, int] = {}
        """Number of waiting requests in each flow."""
        self._flows: list[str] = []
        """Flows with a waiting request, ascending."""
        self._latest = ""
        """Flow of the request taken last."""

    def add(self, waiting: QueuedRequest) -> None:
        flow = self._fairness.flow_of(waiting.tenant)
        heappush(self._heaps.setdefault(flow, []), (self._rank(waiting), waiting))
        before = self._present.get(flow, 0)
        self._present[flow] = before + 1
        self.num_waiting += 1
        if not before:
            insort(self._flows, flow)

    def update_rank(self, waiting: QueuedRequest) -> None:
        """Add an entry with the smaller rank that a waiting request has now; the old entry is skipped later."""
        heappush(self._heaps[self._fairness.flow_of(waiting.tenant)], (self._rank(waiting), waiting))

    def pop(self) -> QueuedRequest:
        """Take the next request; at least one must wait."""
        self._latest = flow = self._fairness.next_flow(self._flows, self._latest)
        heap = self._heaps[flow]
        while True:
            _, waiting = heappop(heap)
            if not waiting.has_left:
                self.leave(waiting)
                return waiting

    def leave(self, waiting: QueuedRequest) -> None:
        """Remove a request that is present."""
        waiting.has_left = True
        flow = self._fairness.flow_of(waiting.tenant)
        self.num_waiting -= 1
        self._present[flow] -= 1
        if not self._present[flow]:
            del self._present[flow], self._heaps[flow]
            del self._flows[bisect_left(self._flows, flow)]


class Refusal(StrEnum):
    """Reason for which a request got no place in the queue."""

    BAND_FULL = "band full"
    QUEUE_FULL = "queue full"


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """Outcome of queueing a request: its place or why it got none, and the requests shed for it."""

    waiting: QueuedRequest | None
    refusal: Refusal | None = None
    shed: QueuedRequest | None = None


class GatewayQueue:
    """Bands of requests of equal importance, the most important band first.

    The rules are BLIS's (sim/cluster/gateway_queue.go).
    """

    def __init__(self, limits: QueueLimits, order: DispatchOrder, fairness: Fairness) -> None:
        self.num_waiting = 0
        self.num_unsheddable = 0
        """Waiting requests of the band that may not be shed."""
        self._limits = limits
        self._order = order
        self._fairness = fairness
        self._bands: dict[int, Band] = {}
        self._descending: list[int] = []
        """Negated keys of all bands, also of bands that are empty by now, ascending."""
        self._sheddable: dict[int, UnfinishedList[QueuedRequest]] = {}
        """Requests of each importance that may be shed, in order of arrival."""
        self._num_entered = 0

    def enter(
        self, sequence: Sequence, importance: int, tenant: str, at: Micros, due_at: Micros = NO_DEADLINE
    ) -> EnqueueResult:
        """Queue a request at `at`, if there is room or a less important request can be shed."""
        number = self._num_entered
        self._num_entered += 1
        band = self._band(importance)
        limits = self._limits
        if limits.max_waiting_per_band and band.num_waiting >= limits.max_waiting_per_band:
            return EnqueueResult(None, Refusal.BAND_FULL)
        shed = None
        if limits.max_waiting and self.num_waiting >= limits.max_waiting:
            shed = self._least_important_below(importance) if limits.sheds else None
            if shed is None:
                return EnqueueResult(None, Refusal.QUEUE_FULL)
            self.leave(shed)
        waiting = QueuedRequest(sequence, importance, tenant, number, at, due_at)
        band.add(waiting)
        self._count(waiting, 1)
        if limits.sheds and waiting.is_sheddable:
            self._note_sheddable(waiting)
        return EnqueueResult(waiting, shed=shed)

    def dispatch(self, saturation: float) -> QueuedRequest | None:
        """Take the next request, unless `saturation` of the instances holds it back."""
        num_below = len(self._descending) - 1
        for index, key in enumerate(self._descending):
            ceiling = 1 - index * (1 - self._limits.usage_limit) / num_below if num_below else 1.0
            if saturation >= ceiling:
                return None
            band = self._bands[-key]
            if band.num_waiting:
                waiting = band.pop()
                self._count(waiting, -1)
                return waiting
        return None

    def leave(self, waiting: QueuedRequest) -> None:
        """Remove a waiting request before its turn: expired, shed, or its client hung up."""
        self._bands[self._key(waiting.importance)].leave(waiting)
        self._count(waiting, -1)

    def update_rank(self, waiting: QueuedRequest) -> None:
        """Move a waiting request that has become more urgent to its new place."""
        self._bands[self._key(waiting.importance)].update_rank(waiting)

    def _count(self, waiting: QueuedRequest, change: int) -> None:
        self.num_waiting += change
        if not waiting.is_sheddable:
            self.num_unsheddable += change

    def _key(self, importance: int) -> int:
        return importance if self._order.by_importance else 0

    def _band(self, importance: int) -> Band:
        key = self._key(importance)
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = Band(self._order, self._fairness)
            insort(self._descending, -key)
        return band

    def _note_sheddable(self, waiting: QueuedRequest) -> None:
        sheddable = self._sheddable.get(waiting.importance)
        if sheddable is None:
            sheddable = self._sheddable[waiting.importance] = UnfinishedList(lambda each: each.has_left)
        sheddable.append(waiting)

    def _least_important_below(self, importance: int) -> QueuedRequest | None:
        """Return the latest of the least important sheddable requests if its importance is below `importance`."""
        for least in sorted(self._sheddable):
            if least >= importance:
                return None
            latest = self._sheddable[least].entries
            while latest and latest[-1].has_left:
                latest.pop()
            if latest:
                return latest[-1]
        return None


# The gateway of a cluster: admitted requests wait in its queue and are routed when the instances have room.


class CompletionWatcher:
    """While switched on, calls `on_ended` with the number of requests that have ended and the instant.

    The cluster then advances from event to event, which is slower than advancing each instance in long stretches.
    """

    __slots__ = ("_cluster", "_num_ended", "_on_ended")

    def __init__(self, cluster: Cluster, on_ended: Callable[[int, Micros], None]) -> None:
        self._cluster = cluster
        self._on_ended = on_ended
        self._num_ended: dict[int, int] = {}
        """Ended requests of each watched instance at the last look."""

    def set_enabled(self, is_on: bool) -> None:
        """Watch all present instances, or none."""
        if not is_on:
            for number in self._num_ended:
                self._cluster.watchers.remove(number, self._on_step)
            self._num_ended = {}
            return
        members = self._cluster.members
        if self._num_ended.keys() == members.keys():
            return
        for number in [each for each in self._num_ended if each not in members]:
            del self._num_ended[number]
        for number in [each for each in members if each not in self._num_ended]:
            self._num_ended[number] = self._count(number)
            self._cluster.watchers.add(number, self._on_step)

    def _on_step(self, number: int, at: Micros) -> None:
        num_ended = self._count(number)
        if num_ended > self._num_ended[number]:
            num_new = num_ended - self._num_ended[number]
            self._num_ended[number] = num_ended
            self._on_ended(num_new, at)

    def _count(self, number: int) -> int:
        return self._cluster.members[number].engine.num_ended


class SheddableRequests:
    """Dispatched sheddable requests by importance. Cost: O(1) each, O(requests not yet routed) to take one."""

    __slots__ = ("_dispatched",)

    def __init__(self) -> None:
        self._dispatched: dict[int, UnfinishedList[Sequence]] = {}

    def add(self, waiting: QueuedRequest) -> None:
        """Add a sheddable request that has been dispatched."""
        dispatched = self._dispatched.get(waiting.importance)
        if dispatched is None:
            dispatched = self._dispatched[waiting.importance] = UnfinishedList(_has_ended)
        dispatched.append(waiting.sequence)

    def take(self) -> Sequence | None:
        """Remove and return the latest of the least important requests that are on an instance."""
        for importance in sorted(self._dispatched):
            sequences = self._dispatched[importance].entries
            while sequences and sequences[-1].outcome is not None:
                sequences.pop()
            for place in range(len(sequences) - 1, -1, -1):
                sequence = sequences[place]
                if sequence.outcome is None and sequence.instance != NOWHERE:
                    return sequences.pop(place)
        return None


def _has_ended(sequence: Sequence) -> bool:
    return sequence.outcome is not None


@dataclass(slots=True)
class GatewayCounters:
    """Requests by outcome at the gateway. All but the dispatched and evicted ones have ended there."""

    num_dispatched: int = 0
    num_rejected: int = 0
    """Requests rejected because the queue or band was full."""
    num_shed: int = 0
    """Requests shed to make room."""
    num_expired: int = 0
    """Requests that waited too long."""
    num_evicted: int = 0
    """Requests taken from an instance."""


class FlowControl:
    """Controls the flow of requests into `cluster`. Each attempt to dispatch lets at most one request pass."""

    def __init__(
        self,
        cluster: Cluster,
        settings: FlowControlSettings,
        priorities: SloPriorities = DEFAULT_SLO_PRIORITIES,
        urgency: GatewayUrgency | None = None,
    ) -> None:
        """`urgency` has the priorities of waiting requests, for the dispatch order that needs them."""
        self.counters = GatewayCounters()
        self._urgency = urgency
        self._cluster = cluster
        self._settings = settings
        self._priorities = priorities
        self._queue = GatewayQueue(
            settings.queue, DISPATCH_ORDERS[settings.dispatch_order], FAIRNESS[settings.fairness]
        )
        self._detector = SATURATION_DETECTORS[settings.saturation_detector]
        self._reads_snapshots = self._detector.reads_loads or cluster.router_reads_snapshots
        self._waiting: dict[str, QueuedRequest] = {}
        """Waiting requests by id."""
        self._sheddable = SheddableRequests()
        self._tick_planned = False
        self._completions = CompletionWatcher(cluster, self._plan_attempt_per_end)
        cluster.add_part(self)
        cluster.schedules_routing = True
        cluster.admitted = self._enter
        cluster.departed.append(self._leave)

    @property
    def num_waiting(self) -> int:
        return self._queue.num_waiting

    def _enter(self, sequence: Sequence, at: Micros) -> None:
        """Queue an admitted request, and attempt to dispatch at once."""
        request = sequence.request
        importance = self._priorities.importance(request.slo_class)
        due_at = self._due_at(request, at) if self._urgency is None else self._urgency.enter(sequence)
        entry = self._queue.enter(sequence, importance, request.tenant, at, due_at)
        if entry.shed is not None:
            self.counters.num_shed += 1
            self._reject(entry.shed, at, "shed at the gateway for a request that matters more")
        waiting = entry.waiting
        if waiting is None:
            self.counters.num_rejected += 1
            self._forget(sequence)
            self._cluster.end(sequence, Outcome.REJECTED, at, f"no room at the gateway: {entry.refusal}")
            return
        self._waiting[request.id] = waiting
        if self._settings.ttl_us:
            self._cluster.event_queue.add(at + self._settings.ttl_us, ClusterEventKind.QUEUE_TTL, self._expire, waiting)
        self._attempt(at)
        self._plan_attempts(at)

    def _due_at(self, request: Request, at: Micros) -> Micros:
        target_us = request.slo_target_us or self._settings.slo_targets_us.get(request.slo_class, 0)
        return at + target_us if target_us else NO_DEADLINE

    def _tick(self, _subject: object, at: Micros) -> None:
        self._tick_planned = False
        self._attempt(at)
        self._plan_attempts(at)

    def _plan_attempts(self, at: Micros) -> None:
        """Schedule an attempt to dispatch waiting requests."""
        interval_us = self._settings.tick_interval_us
        if not interval_us:
            self._completions.set_enabled(is_on=self._queue.num_waiting > 0)
            if any(member.engine.live for member in self._cluster.members.values()):
                return
            # No request is left whose end would cause an attempt; snapshots may be old, so attempt after a refresh.
            interval_us = max(1, self._cluster.state.freshness.refresh_interval_us)
        if self._queue.num_waiting and not self._tick_planned:
            self._tick_planned = True
            self._cluster.event_queue.add(at + interval_us, ClusterEventKind.DISPATCH, self._tick)

    def _plan_attempt_per_end(self, num_ended: int, at: Micros) -> None:
        """Attempt one dispatch for each of `num_ended` requests, at the first instant after they ended."""
        for _ in range(num_ended):
            self._cluster.event_queue.add(at + 1, ClusterEventKind.DISPATCH, self._attempt_once)

    def _attempt_once(self, _subject: object, at: Micros) -> None:
        self._attempt(at)
        self._plan_attempts(at)

    def _attempt(self, at: Micros) -> bool:
        """Dispatch one request if the instances have room. Returns whether one was dispatched."""
        if not self._queue.num_waiting:
            return False
        if self._reads_snapshots:
            self._cluster.refresh_snapshots(at)
        saturation = self._saturation()
        if saturation >= 1 and self._settings.evicts_in_flight and self._queue.num_unsheddable and self._evict(at):
            return False
        if self._urgency is not None:
            for risen in self._urgency.rise(at):
                self._queue.update_rank(self._waiting[risen.request.id])
        waiting = self._queue.dispatch(saturation)
        if waiting is None:
            return False
        self.counters.num_dispatched += 1
        sequence = waiting.sequence
        del self._waiting[sequence.request.id]
        self._forget(sequence)
        sequence.gateway_wait_us = at - waiting.entered_at
        if self._settings.evicts_in_flight and waiting.is_sheddable:
            self._sheddable.add(waiting)
        self._cluster.dispatch(sequence, at)
        return True

    def _saturation(self) -> float:
        """Return the detector's saturation; 0 if no instance serves or will, so that no request waits forever."""
        if not self._cluster.state.candidates and (self._cluster.wakes or not self._cluster.num_starting):
            return 1.0 if self._cluster.wakes else 0.0
        return self._detector.saturation(self._cluster.state, self._settings.saturation)

    def _evict(self, at: Micros) -> bool:
        """Evict the least important sheddable request from its instance. Returns whether there was one."""
        victim = self._sheddable.take()
        if victim is None:
            return False
        self.counters.num_evicted += 1
        self._cluster.abort_at_instance(victim, at, Outcome.EVICTED)
        return True

    def _expire(self, waiting: object, at: Micros) -> None:
        assert isinstance(waiting, QueuedRequest)
        if not waiting.has_left:
            self.counters.num_expired += 1
            self._queue.leave(waiting)
            self._reject(waiting, at, "waited too long at the gateway")

    def _reject(self, waiting: QueuedRequest, at: Micros, reason: str) -> None:
        del self._waiting[waiting.sequence.request.id]
        self._forget(waiting.sequence)
        self._cluster.end(waiting.sequence, Outcome.REJECTED, at, reason)

    def _leave(self, sequence: Sequence, _at: Micros) -> None:
        """Remove a request whose client has hung up."""
        waiting = self._waiting.pop(sequence.request.id, None)
        if waiting is not None:
            self._queue.leave(waiting)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        if self._urgency is not None:
            self._urgency.leave(sequence)
