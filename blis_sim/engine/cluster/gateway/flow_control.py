"""The gateway of a cluster: admitted requests wait in its queue and are routed when the instances have room."""

from collections.abc import Callable
from dataclasses import dataclass

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.event_queue import ClusterEventKind
from blis_sim.engine.cluster.gateway.queue import GatewayQueue, GatewayUrgency
from blis_sim.engine.cluster.gateway.rules import (
    DISPATCH_ORDERS,
    FAIRNESS,
    NO_DEADLINE,
    SATURATION_DETECTORS,
    FlowControlSettings,
    QueuedRequest,
)
from blis_sim.engine.cluster.request_table import UnfinishedList
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES, SloPriorities


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
        return sum(self._cluster.members[number].engine.counters.ended.values())


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
        cluster.gateway = self
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
            if any(engine.live for engine in self._cluster.instances):
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
        """Return the detector's saturation; 0 if no instance serves or loads, so that no request waits forever."""
        if not self._cluster.state.candidates and not self._cluster.num_starting:
            return 0.0
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
