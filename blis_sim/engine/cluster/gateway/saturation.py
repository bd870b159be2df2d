"""How saturated the instances are, from 0 to 1 and beyond. A new detector is one function and one row.

These decide, while a run goes on, whether the gateway dispatches. The detectors that judge a finished run are others
(`traces/saturation/`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.cluster.admission import FULL_CACHE_FRACTION, LONG_QUEUE
from blis_sim.engine.cluster.admission import saturation as mean_utilization
from blis_sim.engine.cluster.state import RoutingState


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """What counts as saturated."""

    num_waiting: float = LONG_QUEUE
    kv_usage_fraction: float = FULL_CACHE_FRACTION
    max_in_flight: int = 100
    """Requests in flight per instance."""


SaturationMeasure: TypeAlias = Callable[[RoutingState, SaturationLimits], float]
"""From the instances as they are seen to their saturation; the gateway dispatches below 1."""


def never(_state: RoutingState, _limits: SaturationLimits) -> float:
    """Not at all: the queue lets everybody pass."""
    return 0.0


def utilization(state: RoutingState, limits: SaturationLimits) -> float:
    """The mean over instances of queue or KV cache against their limits, whichever is nearer."""
    return mean_utilization(state, limits.num_waiting, limits.kv_usage_fraction)


def concurrency(state: RoutingState, limits: SaturationLimits) -> float:
    """Requests in flight against the most there should be."""
    loads = state.candidates
    if not loads:
        return 1.0
    return sum(load.num_in_flight for load in loads) / (len(loads) * limits.max_in_flight)


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector, and whether it looks at the instances at all."""

    saturation: SaturationMeasure
    reads_loads: bool = True


SATURATION_DETECTORS: dict[str, Detector] = {
    "never": Detector(never, reads_loads=False),
    "utilization": Detector(utilization),
    "concurrency": Detector(concurrency),
}
"""Name to detector."""
