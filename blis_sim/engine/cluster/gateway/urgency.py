"""Priorities and deadlines of the requests that wait at a gateway, as on an instance."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.scheduler.priorities import PRIORITIES
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import Urgency


class GatewayUrgency:
    """Gives a request its priority and deadline when it enters, and raises it while it waits here.

    An instance gives the request both anew, so a rise that is due there has its own instant again.
    """

    __slots__ = ("_is_relative", "_present", "_priority", "_settings", "_urgency")

    def __init__(self, config: EngineConfig) -> None:
        """`config` is that of the instances."""
        self._settings = config.urgency
        self._is_relative = config.scheduler == "priority-slo-target"
        self._priority = PRIORITIES[config.priority_policy](config.slo_priorities)
        self._present: set[Sequence] = set()
        rises = config.priority_policy == "slo-urgency"
        self._urgency = Urgency(config.urgency, self._present.__contains__) if rises else None

    def enter(self, sequence: Sequence) -> Micros:
        """Note a request that begins to wait. Returns its place among requests of equal priority: its deadline, or the
        time allowed for it where instances go by that."""
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
