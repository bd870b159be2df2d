"""How the gateway of a cluster controls the flow of requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from blis_sim.engine.cluster.gateway.fairness import FAIRNESS
from blis_sim.engine.cluster.gateway.orders import DISPATCH_ORDERS
from blis_sim.engine.cluster.gateway.queue import QueueLimits
from blis_sim.engine.cluster.gateway.saturation import SATURATION_DETECTORS, SaturationLimits
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlSettings:
    """Names are keys of the registries beside this. Raises EngineError for others, and for negative times."""

    dispatch_order: str = "fifo"
    fairness: str = "global-strict"
    saturation_detector: str = "never"
    queue: QueueLimits = field(default_factory=QueueLimits)
    saturation: SaturationLimits = field(default_factory=SaturationLimits)
    slo_targets_us: Mapping[str, Micros] = field(default_factory=dict)
    """By SLO class, for requests that have no target of their own."""
    ttl_us: Micros = 0
    """How long a request may wait; 0 is for ever."""
    evicts_in_flight: bool = False
    """Whether a saturated cluster gives up sheddable requests for others that wait."""
    tick_interval_us: Micros = 0
    """Time between two attempts to dispatch while somebody waits. 0 attempts whenever a request ends instead."""

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
