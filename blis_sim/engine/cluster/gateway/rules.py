"""Rules of the gateway: dispatch orders, fairness among tenants, saturation detectors, and the settings that pick them.

A new dispatch order, fairness policy or detector is a function and a row of its table. Saturation detectors decide
during a run whether the gateway dispatches; the detectors in `traces/saturation/` judge a finished run.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TypeAlias

from blis_sim.engine.cluster.admission import FULL_CACHE_FRACTION, LONG_QUEUE
from blis_sim.engine.cluster.admission import saturation as mean_utilization
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.errors import EngineError
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

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
