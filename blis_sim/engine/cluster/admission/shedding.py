"""Admission policies that turn away the less important when the instances have much to do."""

from dataclasses import dataclass

from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request
from blis_sim.engine.slo_classes import SloPriorities
from blis_sim.options.addition import added_up

LONG_QUEUE = 5
FULL_CACHE_FRACTION = 0.8
"""What counts as an instance that can take no more: so many requests waiting, or so much of the KV cache in use."""


@dataclass(frozen=True, slots=True)
class TierShed:
    """Everybody while no instance has more than `threshold` effective load, else those of importance `min_priority`."""

    threshold: int
    min_priority: int
    priorities: SloPriorities
    reads_snapshots: bool = True
    routed: None = None

    def admits(self, request: Request, state: RoutingState) -> bool:
        if max((each.load for each in state.candidates), default=0) <= self.threshold:
            return True
        return self.priorities.importance(request.slo_class) >= self.min_priority


@dataclass(frozen=True, slots=True)
class GaieLegacy:
    """Turns away sheddable requests, and only those, while the instances are saturated on average."""

    priorities: SloPriorities
    reads_snapshots: bool = True
    routed: None = None

    def admits(self, request: Request, state: RoutingState) -> bool:
        return not self.priorities.is_sheddable(request.slo_class) or saturation(state) < 1


def saturation(
    state: RoutingState, long_queue: float = LONG_QUEUE, full_cache_fraction: float = FULL_CACHE_FRACTION
) -> float:
    """How much of what they can take the instances have, on average: waiting requests or KV cache, whichever is more.

    1 is all, and what is said of no instances.
    """
    if not state.candidates:
        return 1.0
    used = [
        max(each.num_waiting / long_queue, each.kv_usage_fraction / full_cache_fraction) for each in state.candidates
    ]
    return added_up(used) / len(used)
