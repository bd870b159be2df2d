"""One point: its figures as a flat row, warnings about its step times, and the origin that all points share."""

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from blis_sim.bench.runner.commands import Simulation, simulation
from blis_sim.bench.runner.plan import Plan, Point
from blis_sim.engine.cluster.assembly import first_deployments
from blis_sim.engine.cluster.build import notes_on_cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import resolve
from blis_sim.engine.latency.sureness import sureness
from blis_sim.options import BlisError
from blis_sim.options.provenance import Provenance, command_line, input_hashes

LATENCIES = tuple(f"{name}_{figure}_ms" for name in ("ttft", "itl", "e2e") for figure in ("mean", "p90", "p95", "p99"))
_FROM_METRICS = (
    "completed_requests",
    "injected_requests",
    "timed_out_requests",
    "dropped_unservable",
    "total_input_tokens",
    "total_output_tokens",
    "vllm_estimated_duration_s",
    "responses_per_sec",
    "tokens_per_sec",
    *LATENCIES,
    "preemption_count",
    "goodput_rps",
    "slo_attainment",
)
_FIRST = (*_FROM_METRICS, "rejected_requests", "cache_hit_rate", "num_gpus", "gpu_hours_per_million_tokens")
LATER_FIGURES = (
    *(f"{name}_p50_ms" for name in ("ttft", "itl", "e2e")),
    *(f"mean_itl_per_request_{figure}_ms" for figure in ("p50", "p99")),
    "steady_requests_per_s",
    "steady_output_tokens_per_s",
    "overload_queue_growth_per_min",
)
"""Figures that rows of earlier versions do not have."""
FIGURES = (*_FIRST, *LATER_FIGURES)
"""The figures of a row, in order. Durations and rates as `blis run` has them; tokens are output tokens."""

ORIGIN = ("latency_model", "step_error", "blis_version")
"""The origin of a row: from what its step times come, their expected error as a share, and the version."""

COSTS = ("cost_per_hour", "cost_per_million_tokens")
"""Figures that follow from a price per GPU-hour."""

Figures = Mapping[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a point: figures, None where there is none, or the reason why there are none at all.

    `is_unexpected` marks a defect or a lack of memory, as opposed to settings that do not fit together.
    """

    figures: Figures = field(default_factory=dict)
    error: str = ""
    is_unexpected: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A point to compute: its name, its command and the settings."""

    key: str
    command: str
    settings: Mapping[str, Any]


def compute(job: Job) -> Outcome:
    """Simulate one point. Its standard error is dropped."""
    try:
        return _simulated(job.command, job.settings)
    except BlisError as error:
        return Outcome(error=_line(error))
    except Exception as error:  # noqa: BLE001  (whatever it is, the other points have nothing to do with it)
        return Outcome(error=f"unexpected {type(error).__name__} {_line(error)}".rstrip(), is_unexpected=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _simulated(command: str, settings: Mapping[str, Any]) -> Outcome:
    chosen = simulation(command)
    options = chosen.options_with(settings)
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(StringIO()):
        chosen.run(options)
    report = json.loads(printed.getvalue())
    found, result = report["metrics"], report["result"]
    figures = {name: found.get(name) for name in _FROM_METRICS}
    if options.report.slo_targets and figures["slo_attainment"] is None:  # zero is left out of what a run prints
        figures |= {"goodput_rps": 0.0, "slo_attainment": 0.0}
    breakdown = found.get("breakdown", {})
    figures["rejected_requests"] = _num_rejected(breakdown)
    figures["cache_hit_rate"] = breakdown.get("cache_hit_rate")
    num_gpus = gpus_of(options.cluster)
    figures["num_gpus"] = num_gpus
    figures["gpu_hours_per_million_tokens"] = gpu_hours_per_million_tokens(num_gpus, found["tokens_per_sec"])
    figures |= {name: _later_figure(result, name) for name in LATER_FIGURES}
    return Outcome(figures, origin={name: str(report["provenance"][name]) for name in ORIGIN})


def _later_figure(result: Mapping[str, Any], name: str) -> float | None:
    """A figure of the typed result, by the name of its group and its own; None where the group is absent."""
    groups = ("mean_itl_per_request", "ttft", "itl", "e2e", "steady", "overload")
    group = next(each for each in groups if name.startswith(f"{each}_"))
    value: float | None = (result[group] or {}).get(name.removeprefix(f"{group}_"))
    return value


def _num_rejected(breakdown: Mapping[str, Any]) -> int:
    """Requests that the cluster rejected, or that its gateway rejected, shed or let expire."""
    gateway = breakdown.get("gateway", {})
    at_admission = sum(breakdown.get(name, 0) for name in ("rejected_at_admission", "rejected_at_routing"))
    in_queue = sum(gateway.get(name, 0) for name in ("rejected", "shed", "expired", "evicted"))
    return int(at_admission + in_queue)


def gpus_of(options: ClusterOptions) -> int:
    """Return the number of GPUs of a deployment at the beginning, all of its instances together."""
    merged = with_policies(options)
    return sum(each.num_gpus for each in first_deployments(merged, resolve(merged.deployment)))


def gpu_hours_per_million_tokens(num_gpus: int, tokens_per_s: float) -> float | None:
    """GPU-hours per million output tokens; None without output tokens."""
    return num_gpus * 1e6 / tokens_per_s / 3600 if tokens_per_s else None


def costs(figures: Figures, dollars_per_gpu_hour: float) -> Figures:
    """The cost of a deployment per hour and per million output tokens."""
    num_gpus, spent = figures.get("num_gpus"), figures.get("gpu_hours_per_million_tokens")
    return {
        "cost_per_hour": None if num_gpus is None else num_gpus * dollars_per_gpu_hour,
        "cost_per_million_tokens": None if spent is None else spent * dollars_per_gpu_hour,
    }


_DECIDING = ("model", "hardware", "tp", "latency_model")
_DECIDING_FOR_ALL = ("coefficients", "engine", "model_config_folder", "hardware_config", "policy_config")
_DECIDERS = (*_DECIDING_FOR_ALL, *(f"{pool}{name}" for pool in ("", "prefill_", "decode_") for name in _DECIDING))
"""The settings that decide from what, and for what, step times were learned."""
_MOST_LINES = 10


def step_time_warnings(simulation: Simulation, points: Sequence[Point]) -> list[str]:
    """Return the warnings of all points, each once; points that cannot be simulated have none."""
    unlike = {repr([point.settings.get(name) for name in _DECIDERS]): point for point in points}
    found: dict[str, None] = {}
    for point in unlike.values():
        found |= dict.fromkeys(_warnings(simulation, point))
    lines = list(found)
    if len(lines) > _MOST_LINES:
        return [*lines[:_MOST_LINES], f"warning: and {len(lines) - _MOST_LINES} more like these"]
    return lines


def _warnings(simulation: Simulation, point: Point) -> list[str]:
    try:
        options = with_policies(simulation.options_with(point.settings).cluster)
        deployment = resolve(options.deployment)
        notes = [*deployment.notes, *notes_on_cluster(options, deployment)]
    except BlisError:
        return []
    return [note for note in notes if "warning: " in note]


_MOST_POINTS = 100
"""More points would take longer to look at than is worth it."""


def origin_of(program: str, options: Any, plan: Plan, points: Sequence[Point]) -> Provenance:
    """Return the origin, with GPU, engine and latency model where all points that can be simulated share them."""
    found = [_origin_fields(plan.simulation, point) for point in points] if len(points) <= _MOST_POINTS else []
    known = [each for each in found if each]
    first = known[0] if known else {}
    return Provenance(
        command=command_line(program, options),
        model=str(plan.settings.get("model", "")),
        seed=plan.settings.get("seed"),
        inputs=input_hashes(options, plan.paths_read()),
        **{name: value for name, value in first.items() if all(each[name] == value for each in known)},
    )


def _origin_fields(simulation: Simulation, point: Point) -> dict[str, Any]:
    try:
        options = with_policies(simulation.options_with(point.settings).cluster)
        deployment = resolve(options.deployment)
    except BlisError:
        return {}
    sure = sureness(deployment.latency_name, deployment.notes)
    return {
        "gpu": deployment.gpu.name,
        "gpus_per_instance": deployment.num_gpus,
        "instances": options.num_instances,
        "engine": options.deployment.engine,
        "latency_model": sure.latency_model,
        "step_error": sure.step_error,
        "step_error_source": sure.error_source,
    }
