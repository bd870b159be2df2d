"""Figures of a cluster's run: routing, gateway, autoscaler, disaggregation, and counters of its instances."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_sim.engine.cluster.snapshot import instance_name
from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.stats import EngineCounters
from blis_sim.engine.units import Micros
from blis_sim.options.addition import sequential_sum
from replay.simulation.record import COMPLETED, NEVER, Bools, ClientView, Distribution, Ints, Latencies, distribution
from replay.simulation.simulate import Simulated

if TYPE_CHECKING:
    from blis_sim.engine.cluster.autoscaler import Autoscaler
    from blis_sim.engine.cluster.cluster import Cluster, DecisionLog
    from blis_sim.engine.cluster.disaggregation import Disaggregation
    from blis_sim.engine.cluster.gateway import FlowControl


US_PER_HOUR = 3_600_000_000


@dataclass(slots=True)
class Totals(EngineCounters):
    """Totals of all instances, and the instances that remain."""

    num_waiting: int = 0
    num_running: int = 0


def totals_of(engines: Iterable[Engine]) -> Totals:
    """Return the totals over instances."""
    totals = Totals()
    for engine in engines:
        counters, stats = engine.counters, engine.stats
        for outcome, count in counters.ended.items():
            totals.ended[outcome] += count
        for name in _SUMMED:
            setattr(totals, name, getattr(totals, name) + getattr(counters, name))
        pairs = zip_longest(totals.num_accepted_per_position, counters.num_accepted_per_position, fillvalue=0)
        totals.num_accepted_per_position = [sum(pair) for pair in pairs]
        totals.num_waiting += stats.num_waiting
        totals.num_running += stats.num_running
    return totals


_SUMMED = (
    "num_enqueued",
    "input_tokens",
    "output_tokens",
    "num_preemptions",
    "num_kv_allocation_failures",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
)
"""Counters of instances that totals are sums of."""


def hit_rate(engine: Engine) -> float:
    """The share of an engine's prompt tokens that were found in its caches, 0 when none were looked for."""
    num_found = engine.kv.hit_tokens + engine.counters.offload.num_loaded_tokens
    return num_found / engine.kv.queried_tokens if engine.kv.queried_tokens else 0.0


def cluster_of(simulation: Simulation) -> "Cluster | None":
    """The cluster of a run that had one."""
    if isinstance(simulation, Engine):
        return None
    from blis_sim.engine.cluster.cluster import Cluster  # runs of one engine never need it

    return simulation if isinstance(simulation, Cluster) else None


def engine_names(simulation: Simulation) -> list[str]:
    """Return the name of each engine, by number: that of its instance, with its rank where the instance has ranks."""
    cluster = cluster_of(simulation)
    if cluster is None:
        return [instance_name(number) for number in range(len(simulation.instances))]
    return cluster.engine_names


class DecisionFigures(NamedTuple):
    """The decisions in figures. Regret is by how much the best instance scored above the chosen one, 0 without
    candidates."""

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
    """Instances added and drained by an autoscaler, and the nodes under them."""

    num_started: int
    num_drained: int
    num_without_room: int
    """Instances decided on for which no node had enough free GPUs, and none could be bought."""
    num_nodes_bought: int
    num_nodes_given_back: int
    node_hours: float
    """Hours of all nodes, from when each was bought to when it was given back or the run ended."""
    cost: float
    """Cost of these hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSummary:
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


def routing_summary_of(simulation: Simulation) -> RoutingSummary:
    """Return the figures of a finished run."""
    cluster = cluster_of(simulation)
    if cluster is None:
        return RoutingSummary()
    counters, gateway, autoscaler = cluster.counters, None, None
    if cluster.parts:  # few clusters need these modules
        from blis_sim.engine.cluster.autoscaler import Autoscaler
        from blis_sim.engine.cluster.gateway import FlowControl

        gateway, autoscaler = cluster.part(FlowControl), cluster.part(Autoscaler)
    return RoutingSummary(
        num_rejected_at_admission=counters.num_rejected_at_admission,
        rejected_by_class=dict(sorted(counters.rejected_by_class.items())),
        num_rejected_at_routing=counters.num_rejected_at_routing,
        decisions=None if cluster.decisions is None else _decision_figures(cluster.decisions),
        scaling=None if autoscaler is None else _scaling_figures(autoscaler, cluster.clock),
        gateway=None if gateway is None else _gateway_figures(gateway),
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
    return (
        [
            {"at_us": each.at, **{name: value for name, value in asdict(each).items() if name != "at"}}
            for each in log.decisions
        ]
        if log
        else []
    )


def _scaling_figures(autoscaler: "Autoscaler", until: Micros) -> ScalingFigures:
    """Count the actions up to the end of the run: an autoscaler continues after the last request."""
    scalings = [each for each in autoscaler.scalings if each.at <= until]
    bought = [node for node in autoscaler.nodes.bought if node.bought_at <= until]
    nodes = [*autoscaler.nodes.initial, *bought]
    ended_at = [until if node.given_back_at is None else min(node.given_back_at, until) for node in nodes]
    hours = [(end - node.bought_at) / US_PER_HOUR for node, end in zip(nodes, ended_at, strict=True)]
    return ScalingFigures(
        num_started=sum(each.num_done for each in scalings if each.num_instances > 0),
        num_drained=sum(-each.num_done for each in scalings if each.num_instances < 0),
        num_without_room=sum(each.num_instances - each.num_done for each in scalings if each.num_instances > 0),
        num_nodes_bought=len(bought),
        num_nodes_given_back=sum(node.given_back_at is not None and node.given_back_at <= until for node in nodes),
        node_hours=sequential_sum(hours),
        cost=sequential_sum(each * node.pool.cost_per_hour for each, node in zip(hours, nodes, strict=True)),
    )


def _decision_figures(log: "DecisionLog") -> DecisionFigures:
    regrets = [decision.regret for decision in log.decisions]
    return DecisionFigures(
        num_admitted=log.num_admitted,
        num_rejected=log.num_rejected,
        num_by_instance=dict(sorted(Counter(decision.instance for decision in log.decisions).items())),
        mean_regret=sequential_sum(regrets) / len(regrets) if regrets else 0.0,
        max_regret=max(regrets, default=0.0),
    )


class DisaggregationFigures(NamedTuple):
    """Durations in microseconds."""

    num_separated: int
    """Requests whose prompt an instance computed for another, which took it."""
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
        """The ratio of the higher of both rates to the lower; 0 when the lower is 0."""
        least, most = sorted((self.prompts_per_s, self.answers_per_s))
        return most / least if least else 0.0


def disaggregation_figures(simulated: Simulated, duration_s: float) -> DisaggregationFigures | None:
    """Return the figures of a finished run; None when no instance had a role."""
    disaggregation = disaggregation_of(simulated.simulation)
    if disaggregation is None:
        return None
    record = simulated.requests
    ids = {sequence.request.id for sequence in disaggregation.separated}
    is_separated = np.array([request_id in ids for request_id in record.ids], np.bool_)
    ttft_us = record.ttft_us
    num_prompts = sum(_computed_prompts(disaggregation).values())
    return DisaggregationFigures(
        num_separated=len(ids) - disaggregation.num_dropped,
        num_dropped=disaggregation.num_dropped,
        prompts_per_s=num_prompts / duration_s if duration_s else 0.0,
        answers_per_s=int(record.is_completed.sum()) / duration_s if duration_s else 0.0,
        ttft=distribution(ttft_us[is_separated & (ttft_us != NEVER)]),
        transfer=distribution(np.array(disaggregation.transfer_us, np.int64)),
    )


def without_prefill_requests(totals: Totals, simulation: Simulation) -> Totals:
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
    if cluster is None or not cluster.parts:
        return None
    from blis_sim.engine.cluster.disaggregation import Disaggregation  # few clusters need it

    return cluster.part(Disaggregation)


def _computed_prompts(disaggregation: "Disaggregation") -> Counter[Outcome]:
    """How prompts ended that were computed for others."""
    prompts = [sequence.prompt_part for sequence in disaggregation.separated]
    outcomes = [prompt.outcome for prompt in prompts if prompt is not None]
    return Counter(outcome for outcome in outcomes if outcome in COMPLETED)


class Columns(NamedTuple):
    """One entry per request; `NEVER` for durations of what has not happened."""

    is_completed: Bools
    ttft_us: Ints
    e2e_us: Ints
    scheduling_delay_us: Ints


def columns_of(simulated: Simulated, instance: int | None = None) -> Columns:
    """Return the columns of all requests, or of those that an instance served in part or in whole."""
    record, simulation = simulated.requests, simulated.simulation
    columns = Columns(record.is_completed, record.ttft_us, record.e2e_us, record.scheduling_delay_us)
    if instance is None:
        return columns
    is_its = record.instance == instance
    disaggregation = disaggregation_of(simulation)
    if disaggregation is None:
        return Columns(*(column[is_its] for column in columns))
    separated = disaggregation.separated
    view = ClientView(simulation.instances[instance])
    prompts = [each.prompt_part for each in separated]
    its = [each for each in prompts if each is not None and each.instance == instance]
    parts = [(each, view.latencies(each, each.first_token_at or NEVER)) for each in its]
    if view.engine.config.engine == "blis":
        ids = {sequence.request.id for sequence in separated}
        is_its &= np.array([request_id not in ids for request_id in record.ids], np.bool_)
        parts += _answer_parts(view, instance, separated)
    whole = Columns(*(column[is_its] for column in columns))
    return Columns(*(np.concatenate(both) for both in zip(whole, _part_columns(parts), strict=True)))


def _answer_parts(view: ClientView, instance: int, separated: list[Sequence]) -> list[tuple[Sequence, Latencies]]:
    """Return the requests of a decode instance. In BLIS these have no first token, only step times."""
    answers = []
    for each in separated:
        if each.instance == instance != NOWHERE:
            ttft_us, e2e_us, itl_mean_us, delay_us, num_tokens = view.latencies(each, NEVER)
            if not each.num_preemptions and ttft_us != NEVER:
                ttft_us, e2e_us = NEVER, e2e_us if e2e_us == NEVER else e2e_us - ttft_us
            answers.append((each, (ttft_us, e2e_us, itl_mean_us, delay_us, num_tokens)))
    return answers


def _part_columns(parts: list[tuple[Sequence, Latencies]]) -> Columns:
    latencies = [each for _, each in parts]
    return Columns(
        np.array([sequence.outcome in COMPLETED for sequence, _ in parts], np.bool_),
        np.array([ttft_us for ttft_us, _, _, _, _ in latencies], np.int64),
        np.array([e2e_us for _, e2e_us, _, _, _ in latencies], np.int64),
        np.array([delay_us for _, _, _, delay_us, _ in latencies], np.int64),
    )
