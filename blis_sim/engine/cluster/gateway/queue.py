"""The queue of the gateway, in front of all instances, with priorities and deadlines as on the instances."""

from bisect import bisect_left, insort
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

from blis_sim.engine.cluster.gateway.rules import NO_DEADLINE, DispatchOrder, Fairness, QueuedRequest, QueueLimits, Rank
from blis_sim.engine.cluster.request_table import UnfinishedList
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.scheduler.policies import PRIORITIES
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import Urgency


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
