"""The findings about a run besides its rows, computed once for every form of output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blis_sim.engine.core import Engine
from replay.analysis.breakdown import (
    ClassLatencies,
    ModelFigures,
    SessionFigures,
    TenantFigures,
    by_model,
    by_session,
    by_slo_class,
    by_tenant,
)
from replay.analysis.clusters import Door, SeparatedFigures, door_of, separated_figures
from replay.analysis.queueing import num_blocked_lines
from replay.output.metrics import JsonObject, aggregate, cache_hit_rate
from replay.simulation.record import Record
from replay.simulation.simulate import Simulated
from traces import SloTargets
from traces.saturation.settings import SaturationSettings

if TYPE_CHECKING:
    from replay.analysis.on_demand import CpuTierFigures, Fitness, Goodput
    from traces.saturation.report import Labels
    from traces.saturation.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The questions about a run: targets by class, weights by metric, detectors and their settings."""

    targets: Mapping[str, SloTargets] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    detectors: Sequence[str] = ()
    saturation: SaturationSettings = field(default_factory=SaturationSettings)


class Findings(NamedTuple):
    """The answers. What was not asked for is None or empty."""

    metrics: JsonObject
    instances: Sequence[JsonObject]
    """The metrics of each instance, if there are several."""
    door: Door
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
    separated: SeparatedFigures | None
    goodput: "Goodput | None"
    labels: "Labels"
    fitness: "Fitness | None"


def examine(simulated: Simulated, questions: Questions) -> Findings:
    """Answer the questions about a finished run. What answers those that are not asked is not imported."""
    record = simulated.requests
    metrics = aggregate(simulated)
    duration_s = metrics["vllm_estimated_duration_s"]
    classes = by_slo_class(record)
    num_completed = metrics["completed_requests"]
    engines = simulated.simulation.instances
    return Findings(
        metrics=metrics,
        instances=[aggregate(simulated, number) for number in range(len(engines))] if len(engines) > 1 else (),
        door=door_of(simulated.simulation),
        preemption_rate=metrics["preemption_count"] / num_completed if num_completed else 0.0,
        cache_hit_rate=cache_hit_rate(simulated),
        cpu_tier=_cpu_tier(engines),
        num_priority_inversions=_priority_inversions(record, engines),
        num_blocked_lines=num_blocked_lines(simulated),
        classes=classes,
        models=by_model(record, duration_s),
        tenants=by_tenant(record),
        sessions=by_session(record),
        separated=separated_figures(simulated, duration_s),
        goodput=_goodput(record, questions, classes, duration_s) if questions.targets else None,
        labels=_labels(record, questions) if questions.detectors else {},
        fitness=_fitness(record, questions, metrics) if questions.weights else None,
    )


def _cpu_tier(engines: Sequence[Engine]) -> "CpuTierFigures | None":
    if all(engine.config.cpu_tier is None for engine in engines):
        return None
    from replay.analysis.on_demand import cpu_tier_figures

    return cpu_tier_figures(engines)


def _priority_inversions(record: Record, engines: Sequence[Engine]) -> int:
    if all(engine.config.scheduler != "priority-fcfs" for engine in engines):
        return 0
    from replay.analysis.on_demand import priority_inversions

    return priority_inversions(record)


def _goodput(
    record: Record, questions: Questions, classes: Mapping[str, ClassLatencies], duration_s: float
) -> "Goodput":
    from replay.analysis.on_demand import goodput

    return goodput(record, questions.targets, classes, duration_s)


def _labels(record: Record, questions: Questions) -> "Labels":
    from traces.saturation.report import labels_of

    return labels_of(events_of(record), questions.detectors, questions.saturation)


def _fitness(record: Record, questions: Questions, metrics: JsonObject) -> "Fitness":
    from replay.analysis.on_demand import fitness

    return fitness(record, questions.weights, metrics["total_output_tokens"], metrics["vllm_estimated_duration_s"])


def events_of(record: Record) -> "Timeline":
    """The arrivals and answers of completed requests, for saturation detectors."""
    from traces.saturation.timeline import timeline

    completed = np.flatnonzero(record.is_completed)
    ids = [record.ids[place] for place in completed.tolist()]
    return timeline(record.arrived_at[completed], record.e2e_us[completed], ids)
