"""What a router sees of one instance: figures as fresh as the instance reports them, and what it sent there itself."""

from typing import TYPE_CHECKING

from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.core import Engine


class Snapshot:
    """One instance in figures. Before the first report it looks empty.

    All but `num_in_flight` are as old as the latest report; routers and admission policies only read.
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
        """When the instance reported last."""
        self.num_waiting = 0
        self.num_running = 0
        self.kv_usage_fraction = 0.0
        self.adapters: frozenset[str] = frozenset()
        """LoRA adapters that requests there need."""
        self.num_in_flight = 0
        """Requests routed there that have not ended. The router counts these itself, so it is never old."""

    @property
    def load(self) -> int:
        """BLIS's effective load. Who waits or runs is in flight as well, and so counts twice."""
        return self.num_waiting + self.num_running + self.num_in_flight

    def report(self, engine: "Engine", now: Micros) -> None:
        """The instance says how it is."""
        stats = engine.stats
        self.seen_at = now
        self.num_waiting = stats.num_waiting
        self.num_running = stats.num_running
        self.kv_usage_fraction = stats.kv_usage_fraction

    def report_adapters(self, engine: "Engine") -> None:
        """The instance says for which adapters it has requests. Cost: O(requests there)."""
        self.adapters = frozenset(each.request.adapter for each in engine.live.values() if each.request.adapter)


def instance_name(number: int) -> str:
    """What an instance is called where people read."""
    return f"instance_{number}"
