"""All that there is to say of a run besides its rows, worked out once for every form of output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from replay.anomalies import priority_inversions
from replay.breakdown import (
    ClassLatencies,
    ModelFigures,
    SessionFigures,
    TenantFigures,
    by_model,
    by_session,
    by_slo_class,
    by_tenant,
)
from replay.cpu_tier import CpuTierFigures, cpu_tier_figures
from replay.door import Door, door_of
from replay.fitness import Fitness, fitness
from replay.goodput import Goodput, goodput
from replay.outputs import JsonObject, aggregate, cache_hit_rate
from replay.queueing import num_blocked_lines
from replay.record import Record
from replay.separated import SeparatedFigures, separated_figures
from replay.simulate import Simulated
from traces import SloTargets
from traces.saturation import Labels, SaturationSettings, Timeline, labels_of, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked of a run: targets by class, weights by metric, detectors and their settings."""

    targets: Mapping[str, SloTargets] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    detectors: Sequence[str] = ()
    saturation: SaturationSettings = field(default_factory=SaturationSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The answers. What was not asked for is None or empty."""

    metrics: JsonObject
    instances: Sequence[JsonObject]
    """The same for each instance, if there are several."""
    door: Door
    preemption_rate: float
    """Preemptions per completed request."""
    cache_hit_rate: float
    cpu_tier: CpuTierFigures | None
    num_priority_inversions: int
    num_blocked_lines: int
    classes: Mapping[str, ClassLatencies]
    models: Mapping[str, ModelFigures]
    tenants: Mapping[str, TenantFigures]
    sessions: SessionFigures | None
    separated: SeparatedFigures | None
    goodput: Goodput | None
    labels: Labels
    fitness: Fitness | None


def examine(simulated: Simulated, questions: Questions) -> Findings:
    """Answer the questions about a finished run."""
    record = simulated.requests
    metrics = aggregate(simulated)
    duration_s = metrics["vllm_estimated_duration_s"]
    classes = by_slo_class(record)
    num_completed = metrics["completed_requests"]
    engines = simulated.simulation.instances
    by_priority = any(engine.config.scheduler == "priority-fcfs" for engine in engines)
    return Findings(
        metrics=metrics,
        instances=[aggregate(simulated, number) for number in range(len(engines))] if len(engines) > 1 else (),
        door=door_of(simulated.simulation),
        preemption_rate=metrics["preemption_count"] / num_completed if num_completed else 0.0,
        cache_hit_rate=cache_hit_rate(simulated),
        cpu_tier=cpu_tier_figures(engines),
        num_priority_inversions=priority_inversions(record) if by_priority else 0,
        num_blocked_lines=num_blocked_lines(simulated),
        classes=classes,
        models=by_model(record, duration_s),
        tenants=by_tenant(record),
        sessions=by_session(record),
        separated=separated_figures(simulated, duration_s),
        goodput=goodput(record, questions.targets, classes, duration_s) if questions.targets else None,
        labels=labels_of(events_of(record), questions.detectors, questions.saturation) if questions.detectors else {},
        fitness=fitness(record, questions.weights, metrics["total_output_tokens"], duration_s)
        if questions.weights
        else None,
    )


def events_of(record: Record) -> Timeline:
    """The arrivals and answers of completed requests, for saturation detectors."""
    completed = np.flatnonzero(record.is_completed)
    ids = [record.ids[place] for place in completed.tolist()]
    return timeline(record.arrived_at[completed], record.e2e_us[completed], ids)
