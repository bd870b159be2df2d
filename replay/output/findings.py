"""The findings about a run besides its rows, computed once for every form of output, and their JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_sim.engine.cluster.build import notes_after_run
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, notes_after
from blis_sim.engine.units import Micros
from blis_sim.options.custom_metrics import CustomMetric, values_of
from blis_sim.options.latency_targets import TargetCheck, checks_json, checks_of
from replay.analysis.breakdown import (
    ClassLatencies,
    ModelFigures,
    SessionFigures,
    TenantFigures,
    by_model,
    by_session,
    by_slo_class,
    by_tenant,
    jain_index,
)
from replay.analysis.clusters import DisaggregationFigures, RoutingSummary, disaggregation_figures, routing_summary_of
from replay.analysis.result import load_of_run
from replay.analysis.steady import Steadiness, SteadyState, num_blocked_lines, steadiness, steady_state
from replay.output.metrics import JsonObject, adapter_figures, aggregate, cache_hit_rate
from replay.simulation.record import Distribution, Record
from replay.simulation.simulate import Simulated
from traces import SloTargets, TraceHeader
from traces.load import Load
from traces.saturation_options import SaturationSettings

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance
    from replay.analysis.on_demand import CpuTierFigures, Fitness
    from traces.goodput import ClassAttainment, Goodput
    from traces.saturation import Labels, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisConfig:
    """The settings of an analysis: targets by class and percentile, weights by metric, detectors and their settings."""

    targets: Mapping[str, SloTargets] = field(default_factory=dict)
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Targets for percentiles of latencies, by the metric that each limits."""
    weights: Mapping[str, float] = field(default_factory=dict)
    metrics: Sequence[CustomMetric] = ()
    detectors: Sequence[str] = ()
    judges_queue: bool = False
    """Whether the growth of the number of requests in the system gets a label, too."""
    saturation: SaturationSettings = field(default_factory=SaturationSettings)


class Findings(NamedTuple):
    """The results of an analysis; parts that were not requested are None or empty."""

    metrics: JsonObject
    instances: Sequence[JsonObject]
    """The metrics of each instance, if there are several."""
    routing_summary: RoutingSummary
    preemption_rate: float
    """Preemptions per completed request."""
    cache_hit_rate: float
    cpu_tier: "CpuTierFigures | None"
    num_priority_inversions: int
    num_blocked_lines: int
    classes: Mapping[str, ClassLatencies]
    models: Mapping[str, ModelFigures]
    tenants: Mapping[str, TenantFigures]
    sessions: SessionFigures | None
    separated: DisaggregationFigures | None
    goodput: "Goodput | None"
    checks: Sequence[TargetCheck]
    """The percentiles that have targets."""
    labels: "Labels"
    fitness: "Fitness | None"
    load: Load
    steady: SteadyState | None
    steadiness: Steadiness
    adapters: JsonObject
    custom_metrics: Mapping[str, float]
    """Metrics of other packages by name."""


def analyze(simulated: Simulated, analysis_config: AnalysisConfig, judged: Steadiness | None = None) -> Findings:
    """Analyse a finished run. Modules of parts that are not requested are not imported.

    `judged` is what longer runs of the load say of its steady state, if there are any.
    """
    record = simulated.requests
    metrics = aggregate(simulated)
    duration_s = metrics["vllm_estimated_duration_s"]
    num_completed = metrics["completed_requests"]
    engines = simulated.simulation.instances
    judged = judged or steadiness(record)
    on_demand = _figures_on_demand(record, engines, analysis_config, metrics)
    return Findings(
        metrics=metrics,
        instances=[aggregate(simulated, number) for number in range(len(engines))] if len(engines) > 1 else (),
        routing_summary=routing_summary_of(simulated.simulation),
        preemption_rate=metrics["preemption_count"] / num_completed if num_completed else 0.0,
        cache_hit_rate=cache_hit_rate(simulated),
        num_blocked_lines=num_blocked_lines(simulated),
        classes=by_slo_class(record),
        models=by_model(record, duration_s),
        tenants=by_tenant(record),
        sessions=by_session(record),
        separated=disaggregation_figures(simulated, duration_s),
        checks=target_checks(record, analysis_config.limits_ms, metrics),
        labels=_labels_of(record, analysis_config, judged),
        load=load_of_run(record),
        steady=steady_state(record),
        steadiness=judged,
        adapters=adapter_figures(simulated),
        custom_metrics=values_of(analysis_config.metrics, simulated),
        **on_demand,
    )


def target_checks(record: Record, limits_ms: Mapping[str, float], metrics: JsonObject) -> Sequence[TargetCheck]:
    """Return the percentiles beside their targets; those of no sample are unknown."""
    if not limits_ms or not metrics["completed_requests"]:
        return checks_of(limits_ms, None)
    has_gaps = len(record.tokens.gaps()) > 0
    return checks_of(limits_ms, {name: each for name, each in metrics.items() if has_gaps or name[:4] != "itl_"})


def _figures_on_demand(
    record: Record, engines: Sequence[Engine], analysis_config: AnalysisConfig, metrics: JsonObject
) -> dict[str, Any]:
    """Return the fields of findings whose module few runs need."""
    found: dict[str, Any] = {"cpu_tier": None, "num_priority_inversions": 0, "goodput": None, "fitness": None}
    configs, weights = [engine.config for engine in engines], analysis_config.weights
    has_tier = any(each.cpu_tier is not None or each.offload_chain is not None for each in configs)
    has_priorities = any(each.scheduler == "priority-fcfs" for each in configs)
    if not (has_tier or has_priorities or weights or analysis_config.targets):
        return found
    from replay.analysis.on_demand import cpu_tier_figures, fitness, goodput, priority_inversions

    duration_s = metrics["vllm_estimated_duration_s"]
    if has_tier:
        found["cpu_tier"] = cpu_tier_figures(engines)
    if has_priorities:
        found["num_priority_inversions"] = priority_inversions(record)
    if analysis_config.targets:
        found["goodput"] = goodput(record, analysis_config.targets, duration_s)
    if weights:
        found["fitness"] = fitness(record, weights, metrics["total_output_tokens"], duration_s)
    return found


def _labels_of(record: Record, analysis_config: AnalysisConfig, judged: Steadiness) -> "Labels":
    labels: Labels = {}
    if analysis_config.detectors:
        from traces.saturation import labels_of

        labels = labels_of(events_of(record), analysis_config.detectors, analysis_config.saturation)
    if analysis_config.judges_queue and judged.is_steady is not None and len(record):
        labels["queue"] = "OVERLOADED" if judged.overload else "STABLE" if judged.is_steady else "TOO_SHORT"
    return labels


def events_of(record: Record) -> "Timeline":
    """The arrivals and answers of completed requests, for saturation detectors."""
    from traces.saturation import timeline

    completed = np.flatnonzero(record.is_completed)
    ids = [record.ids[place] for place in completed.tolist()]
    return timeline(record.arrived_at[completed], record.e2e_us[completed], ids)


_US_PER_MS = 1000


def as_json(found: Findings) -> JsonObject:
    """The metrics, their judgement, and `breakdown` with the content of all text sections."""
    judged = judgements(found)
    if found.checks:
        judged["targets"] = checks_json(found.checks)
    if found.custom_metrics:
        judged["custom_metrics"] = dict(found.custom_metrics)
    return {**found.metrics, **judged, "breakdown": _breakdown_json(found)}


def judgements(found: Findings) -> JsonObject:
    """Return saturation labels, goodput and adapters for the end of the metrics; empty and zero values are left out."""
    content: JsonObject = {"saturation": found.labels}
    if (goodput := found.goodput) is not None:
        content["goodput_rps"] = goodput.per_s
        content["slo_attainment"] = goodput.share
        content["per_class"] = {
            name: _class_goodput(each, found.classes.get(name)) for name, each in goodput.classes.items()
        }
    content["adapters"] = found.adapters
    return {key: value for key, value in content.items() if value}


def _class_goodput(of_class: "ClassAttainment", latencies: ClassLatencies | None) -> JsonObject:
    attained = of_class.attained
    content: JsonObject = {
        "count": of_class.count,
        "goodput_rps": attained.per_s,
        "slo_attainment": attained.share,
        "slo_attainment_by_dim": attained.by_limit,
    }
    if latencies is not None:
        content["ttft_p99_ms"] = latencies.ttft.percentile(99) / 1000
    if latencies is not None and len(latencies.e2e):
        content["e2e_p99_ms"] = latencies.e2e.percentile(99) / 1000
        content["itl_mean_ms"] = latencies.itl.mean / 1000
    return dict(sorted(content.items()))


def _breakdown_json(found: Findings) -> JsonObject:
    content: JsonObject = {
        "cache_hit_rate": found.cache_hit_rate,
        "preemption_rate": found.preemption_rate,
        "priority_inversions": found.num_priority_inversions,
        "slo_classes": {
            name: {
                "ttft_ms": _distribution_json(each.ttft, _US_PER_MS),
                "itl_ms": _distribution_json(each.itl, _US_PER_MS),
                "e2e_ms": _distribution_json(each.e2e, _US_PER_MS),
            }
            for name, each in found.classes.items()
        },
        "models": {
            name: {
                "ttft_ms": _distribution_json(each.ttft, _US_PER_MS),
                "e2e_ms": _distribution_json(each.e2e, _US_PER_MS),
                "responses_per_sec": each.requests_per_s,
                "tokens_per_sec": each.tokens_per_s,
            }
            for name, each in found.models.items()
        },
        "tenants": {
            name: {"completed_requests": each.num_requests, "output_tokens": each.num_tokens}
            for name, each in found.tenants.items()
        },
    }
    if found.cpu_tier is not None:
        content["kv_cpu_tier"] = {
            "blocks_stored": found.cpu_tier.num_stored,
            "blocks_evicted": found.cpu_tier.num_evicted,
            "blocks_brought_back": found.cpu_tier.num_fetched,
            "blocks_thrashed": found.cpu_tier.num_thrashed,
            "thrashing_rate": found.cpu_tier.thrashing_rate,
        }
    if found.tenants:
        content["jain_fairness_index"] = jain_index([each.num_tokens for each in found.tenants.values()])
    if found.sessions is not None:
        content["sessions"] = {
            "count": found.sessions.num_sessions,
            "ttft_cold_ms": _distribution_json(found.sessions.ttft_cold),
            "ttft_warm_ms": _distribution_json(found.sessions.ttft_warm),
            "duration_ms": _distribution_json(found.sessions.duration),
        }
    if found.instances:
        content["instances"] = list(found.instances)
        content["hol_blocking_events"] = found.num_blocked_lines
    content["load"] = asdict(found.load)
    content["is_steady"] = found.steadiness.is_steady
    if found.steady is not None:
        content["steady_state"] = asdict(found.steady)
    if found.steadiness.overload is not None:
        content["overload"] = asdict(found.steadiness.overload)
    content |= _routing_summary(found.routing_summary)
    if found.separated is not None:
        content["pd"] = {
            "disaggregated_requests": found.separated.num_separated,
            "dropped_at_decode": found.separated.num_dropped,
            "prefill_per_sec": found.separated.prompts_per_s,
            "decode_per_sec": found.separated.answers_per_s,
            "load_imbalance": found.separated.imbalance,
            "ttft_ms": _distribution_json(found.separated.ttft, _US_PER_MS),
            "transfer_ms": _distribution_json(found.separated.transfer, _US_PER_MS),
        }
    if found.fitness is not None:
        content["fitness"] = {"score": found.fitness.score, **found.fitness.components}
    return content


def _routing_summary(routing_summary: RoutingSummary) -> JsonObject:
    content: JsonObject = {}
    if routing_summary.num_rejected_at_admission or routing_summary.num_rejected_at_routing:
        content["rejected_at_admission"] = routing_summary.num_rejected_at_admission
        content["rejected_at_admission_by_class"] = dict(routing_summary.rejected_by_class)
        content["rejected_at_routing"] = routing_summary.num_rejected_at_routing
    if routing_summary.gateway is not None:
        counts = _without_prefix(routing_summary.gateway._asdict())
        content["gateway"] = {"still_waiting" if name == "waiting" else name: each for name, each in counts.items()}
    if routing_summary.scaling is not None:
        content["autoscaler"] = _without_prefix(routing_summary.scaling._asdict())
    if routing_summary.decisions is not None:
        content["decisions"] = {
            "admitted": routing_summary.decisions.num_admitted,
            "rejected": routing_summary.decisions.num_rejected,
            "routed": dict(routing_summary.decisions.num_by_instance),
            "mean_regret": routing_summary.decisions.mean_regret,
            "max_regret": routing_summary.decisions.max_regret,
        }
    return content


def _without_prefix(figures: Mapping[str, Any]) -> JsonObject:
    return {name.removeprefix("num_"): value for name, value in figures.items()}


def _distribution_json(each: Distribution, units_per_ms: int = 1) -> JsonObject:
    figures = {"mean": each.mean, **{f"p{percent}": each.percentile(percent) for percent in (50, 95, 99)}}
    return {"count": len(each), **{name: value / units_per_ms for name, value in figures.items()}}


class SendPolicy(NamedTuple):
    """How requests were sent, as the files of a run record it."""

    is_chosen_by_run: bool = False
    """Whether the simulation chose the send times of its requests."""
    keeps_schedule: bool = False
    """Whether a trace of the run has scheduled arrivals as well as send times."""


def notes_on_run(
    simulated: Simulated,
    deployment: Deployment,
    kills: Iterable[tuple[Micros, int | None]],
    num_requests: int,
) -> Iterator[str]:
    """Yield what a finished run shows about its settings. `num_requests` are known to come; 0 where any number may."""
    num_unsent = num_requests - len(simulated.requests)
    if num_unsent > 0:
        yield f"{num_unsent} requests were not sent: a request that they wait for was not answered"
    if (longest := simulated.requests.longest_refused) is not None:
        yield f"warning: requests were refused, the longest because {longest.detail}"
    yield from notes_after(deployment)
    yield from notes_after_run(simulated.simulation, kills)


class FinishedRun(NamedTuple):
    """A finished run: the settings of its analysis, the simulation, its requests, and the header of its trace.

    `metrics` replaces the aggregate metrics of the run. If `simulated` is a mean of runs, `runs` has them. `describe`
    returns the origin of the results, whose first line is `title`.
    """

    analysis_config: AnalysisConfig
    simulated: Simulated
    header: TraceHeader
    title: str
    describe: "Callable[[], Provenance]"
    metrics: JsonObject | None = None
    sending: SendPolicy = SendPolicy()
    runs: tuple[Simulated, ...] = ()
    notes: tuple[str, ...] = ()
    """Requests left out, and findings about the settings, such as steps outside the range of coefficients."""
    judge: Callable[[], Steadiness] | None = None
    """Judges the steady state by longer runs of the load, once, where the run itself is too short for it."""

    @property
    def judged(self) -> Steadiness | None:
        """The judgement of the steady state; None leaves it to the run alone."""
        return None if self.judge is None else self.judge()

    def findings(self) -> Findings:
        """Return the results of the analysis."""
        found = analyze(self.simulated, self.analysis_config, self.judged)
        if self.metrics is None:
            return found
        known = {each.name: self.metrics[each.name] for each in found.checks if each.found_ms is not None}
        return found._replace(metrics=self.metrics, checks=checks_of(self.analysis_config.limits_ms, known))
