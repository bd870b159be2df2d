"""Figures of a cluster's run: routing, gateway, autoscaler and prefill/decode disaggregation."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.options.addition import added_up
from replay.analysis.distribution import Distribution, distribution
from replay.analysis.totals import Totals
from replay.simulation.measure import COMPLETED
from replay.simulation.record import NEVER
from replay.simulation.simulate import Simulated

if TYPE_CHECKING:
    from blis_sim.engine.cluster.autoscaling.autoscaler import Autoscaler
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.cluster.disaggregation.handover import Disaggregation
    from blis_sim.engine.cluster.gateway.flow_control import FlowControl
    from blis_sim.engine.cluster.reporting import DecisionLog


def cluster_of(simulation: Simulation) -> "Cluster | None":
    """The cluster of a run that had one."""
    if isinstance(simulation, Engine):
        return None
    from blis_sim.engine.cluster.cluster import Cluster  # runs of one engine never need it

    return simulation if isinstance(simulation, Cluster) else None


class DecisionFigures(NamedTuple):
    """The decisions in figures. Regret is by how much the best instance scored above the chosen one."""

    num_admitted: int
    num_rejected: int
    num_by_instance: Mapping[str, int]
    """Requests routed to each, of those that got any."""
    mean_regret: float
    max_regret: float


class GatewayFigures(NamedTuple):
    """Requests in the gateway's queue by outcome."""

    num_dispatched: int
    num_waiting: int
    """Requests still waiting at the end of the run."""
    num_rejected: int
    num_shed: int
    num_expired: int
    num_evicted: int


class ScalingFigures(NamedTuple):
    """Instances added and drained by an autoscaler."""

    num_started: int
    num_drained: int
    num_without_room: int
    """Instances decided on for which no node had enough free GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Admission, routing, gateway and autoscaler figures of a run; a run without a cluster rejects no request."""

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
    """Return the figures of a finished run."""
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
    """Count the actions up to the end of the run: an autoscaler goes on after the last request."""
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


class SeparatedFigures(NamedTuple):
    """Durations in microseconds."""

    num_separated: int
    num_dropped: int
    """Requests whose decode instance had too few free KV blocks for the prompt."""
    prompts_per_s: float
    """Prompts computed for others."""
    answers_per_s: float
    """All requests completed."""
    ttft: Distribution
    """Latencies of requests with separated prompts."""
    transfer: Distribution

    @property
    def imbalance(self) -> float:
        """How many times as much the busier half did; 0 when one did nothing."""
        least, most = sorted((self.prompts_per_s, self.answers_per_s))
        return most / least if least else 0.0


def separated_figures(simulated: Simulated, duration_s: float) -> SeparatedFigures | None:
    """Return the figures of a finished run; None when no instance had a role."""
    disaggregation = disaggregation_of(simulated.simulation)
    if disaggregation is None:
        return None
    record = simulated.requests
    ids = {sequence.request.id for sequence in disaggregation.separated}
    is_separated = np.array([request_id in ids for request_id in record.ids], np.bool_)
    ttft_us = record.ttft_us
    num_prompts = sum(_computed_prompts(disaggregation).values())
    return SeparatedFigures(
        num_separated=len(ids),
        num_dropped=disaggregation.num_dropped,
        prompts_per_s=num_prompts / duration_s if duration_s else 0.0,
        answers_per_s=int(record.is_completed.sum()) / duration_s if duration_s else 0.0,
        ttft=distribution(ttft_us[is_separated & (ttft_us != NEVER)]),
        transfer=distribution(np.array(disaggregation.transfer_us, np.int64)),
    )


def without_prompts(totals: Totals, simulation: Simulation) -> Totals:
    """The totals of all instances of a cluster, in which each request counts once whatever it consisted of.

    Requests in transfer count as running.
    """
    disaggregation = disaggregation_of(simulation)
    if disaggregation is None:
        return totals
    for outcome, count in _computed_prompts(disaggregation).items():
        totals.ended[outcome] -= count
    for sequence in disaggregation.separated:
        prompt = sequence.prompt_part
        if prompt is not None and prompt.outcome in COMPLETED:
            totals.output_tokens -= prompt.num_output_tokens
    totals.num_running += disaggregation.num_in_transfer
    for outcome, count in disaggregation.ended_in_transfer.items():
        totals.ended[outcome] += count
    return totals


def disaggregation_of(simulation: Simulation) -> "Disaggregation | None":
    """Return the cluster's disaggregation; None without it."""
    cluster = cluster_of(simulation)
    return None if cluster is None else cluster.disaggregation


def _computed_prompts(disaggregation: "Disaggregation") -> Counter[Outcome]:
    """How prompts ended that were computed for others."""
    prompts = [sequence.prompt_part for sequence in disaggregation.separated]
    outcomes = [prompt.outcome for prompt in prompts if prompt is not None]
    return Counter(outcome for outcome in outcomes if outcome in COMPLETED)
