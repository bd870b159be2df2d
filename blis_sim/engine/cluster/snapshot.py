"""A router's view of one instance: figures of the latest report, and the router's own count of requests in flight."""

from typing import TYPE_CHECKING

from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.core import Engine


class Snapshot:
    """Figures of one instance. Before the first report all are zero.

    All but `num_in_flight` are as old as the latest report. Routers and admission policies only read them.
    """

    __slots__ = (
        "adapters",
        "instance",
        "kv_usage_fraction",
        "name",
        "num_in_flight",
        "num_running",
        "num_waiting",
        "seen_at",
    )

    def __init__(self, instance: int, seen_at: Micros = 0) -> None:
        self.instance = instance
        self.name = instance_name(instance)
        self.seen_at = seen_at
        """Instant of the latest report."""
        self.num_waiting = 0
        self.num_running = 0
        self.kv_usage_fraction = 0.0
        self.adapters: frozenset[str] = frozenset()
        """LoRA adapters of the instance's requests."""
        self.num_in_flight = 0
        """Unfinished requests routed to the instance. The router counts these itself, so the figure is current."""

    @property
    def load(self) -> int:
        """BLIS's effective load. A waiting or running request is in flight as well, and so counts twice."""
        return self.num_waiting + self.num_running + self.num_in_flight

    def report(self, engine: "Engine", now: Micros) -> None:
        """Take over the current figures of the instance."""
        stats = engine.stats
        self.seen_at = now
        self.num_waiting = stats.num_waiting
        self.num_running = stats.num_running
        self.kv_usage_fraction = stats.kv_usage_fraction

    def report_adapters(self, engine: "Engine") -> None:
        """Take over the adapters of the instance's requests. Cost: O(requests there)."""
        self.adapters = frozenset(each.request.adapter for each in engine.live.values() if each.request.adapter)


def instance_name(number: int) -> str:
    """Return the name of an instance in reports."""
    return f"instance_{number}"
