"""What happened at the door of a cluster: who was turned away, and where the others were sent."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.options.addition import added_up
from replay.figures.clustered import cluster_of

if TYPE_CHECKING:
    from blis_sim.engine.cluster.autoscaling.autoscaler import Autoscaler
    from blis_sim.engine.cluster.gateway.flow_control import FlowControl
    from blis_sim.engine.cluster.reporting import DecisionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFigures:
    """The decisions in figures. Regret is by how much the best instance scored above the chosen one."""

    num_admitted: int
    num_rejected: int
    num_by_instance: Mapping[str, int]
    """Requests routed to each, of those that got any."""
    mean_regret: float
    max_regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFigures:
    """What became of requests in the gateway's queue."""

    num_dispatched: int
    num_waiting: int
    """Those still there at the end."""
    num_rejected: int
    num_shed: int
    num_expired: int
    num_evicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFigures:
    """What an autoscaler did, in instances."""

    num_started: int
    num_drained: int
    num_without_room: int
    """Those it wanted and for which there was no machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Without a cluster nobody is turned away."""

    num_rejected_at_admission: int = 0
    rejected_by_class: Mapping[str, int] = field(default_factory=dict)
    num_rejected_at_routing: int = 0
    decisions: DecisionFigures | None = None
    """None when none were kept."""
    gateway: GatewayFigures | None = None
    """None without flow control."""
    scaling: ScalingFigures | None = None
    """None without an autoscaler."""


def door_of(simulation: Simulation) -> Door:
    """What is to be said of a finished run."""
    cluster = cluster_of(simulation)
    if cluster is None:
        return Door()
    counters = cluster.counters
    return Door(
        num_rejected_at_admission=counters.num_rejected_at_admission,
        rejected_by_class=dict(sorted(counters.rejected_by_class.items())),
        num_rejected_at_routing=counters.num_rejected_at_routing,
        decisions=None if cluster.decisions is None else _figures(cluster.decisions),
        scaling=None if cluster.autoscaler is None else _scaling_figures(cluster.autoscaler, cluster.clock),
        gateway=None if cluster.gateway is None else _gateway_figures(cluster.gateway),
    )


def _gateway_figures(gateway: "FlowControl") -> GatewayFigures:
    counters = gateway.counters
    return GatewayFigures(
        num_dispatched=counters.num_dispatched,
        num_waiting=gateway.num_waiting,
        num_rejected=counters.num_rejected,
        num_shed=counters.num_shed,
        num_expired=counters.num_expired,
        num_evicted=counters.num_evicted,
    )


def decision_rows(simulation: Simulation) -> list[dict[str, object]]:
    """Each decision of a run as JSON has it; none if none were kept."""
    cluster = cluster_of(simulation)
    log = cluster.decisions if cluster is not None else None
    return [_renamed(asdict(decision)) for decision in log.decisions] if log else []


def _renamed(decision: dict[str, object]) -> dict[str, object]:
    """With the unit of the instant in its name."""
    return {"at_us": decision.pop("at"), **decision}


def _scaling_figures(autoscaler: "Autoscaler", until: Micros) -> ScalingFigures:
    """Those up to the end of the run: an autoscaler does not know that nothing will come any more."""
    scalings = [each for each in autoscaler.scalings if each.at <= until]
    return ScalingFigures(
        num_started=sum(each.num_done for each in scalings if each.num_instances > 0),
        num_drained=sum(-each.num_done for each in scalings if each.num_instances < 0),
        num_without_room=sum(each.num_instances - each.num_done for each in scalings if each.num_instances > 0),
    )


def _figures(log: "DecisionLog") -> DecisionFigures:
    regrets = [decision.regret for decision in log.decisions]
    return DecisionFigures(
        num_admitted=log.num_admitted,
        num_rejected=log.num_rejected,
        num_by_instance=dict(sorted(Counter(decision.instance for decision in log.decisions).items())),
        mean_regret=added_up(regrets) / len(regrets) if regrets else 0.0,
        max_regret=max(regrets, default=0.0),
    )
