"""The functions of the Python interface: `run`, `replay`, `server`, `sweep`, `plan`, `calibrate`, `fit`, and the tables
of their results.
"""

import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack

from blis_sim.api.settings import (
    CalibrateSettings,
    FitSettings,
    PlanSettings,
    ReplaySettings,
    RunSettings,
    ServeSettings,
    SweepSettings,
)
from blis_sim.installation import install_command
from blis_sim.options import BlisError, OptionError, options_from, options_of
from blis_sim.options.option import Setting, parse_yaml_value
from blis_sim.testing import Server, serving

if TYPE_CHECKING:
    from blis_sim.bench.capacity import CapacityPlan
    from blis_sim.bench.simulation_commands import Simulation
    from calibrate.calibration import Calibration
    from calibrate.compare import Comparison
    from replay.output.findings import FinishedRun
    from replay.simulation.record import Pool

# From keyword arguments to the options of a command.

Options = TypeVar("Options")

KINDS: Mapping[str, str] = {
    "run": "RunSettings",
    "replay": "ReplaySettings",
    "sweep": "SweepSettings",
    "plan": "PlanSettings",
    "calibrate": "CalibrateSettings",
    "fit": "FitSettings",
    "serve": "ServeSettings",
}
"""Command to the class of its keyword arguments."""

OMITTED_SETTINGS = (
    "json",
    "format",
    "log",
    "fail_on",
    "summarize_trace",
    "vary",
    "config",
    "compat",
    "adapter_reference",
    "sim_metrics_blind",
)
"""Settings of what a command prints, and of other ways to name what a function has a parameter for."""


def options_from_kwargs(options_class: type[Options], kwargs: Mapping[str, Any], function: str, **more: Any) -> Options:
    """The options of keyword arguments; `more` holds values by name as they are.

    Raises TypeError for a name that is no setting, and OptionError for a value that is not allowed.
    """
    return options_from(options_class, **values_from_kwargs([options_class], kwargs, function)[0], **more)


def values_from_kwargs(
    options_classes: Sequence[type], kwargs: Mapping[str, Any], function: str
) -> Sequence[dict[str, Any]]:
    """Return the values of keyword arguments by setting, in one mapping for each class; the first class wins.

    Raises TypeError for a name that is a setting of none, or given twice, and OptionError for a value that cannot be
    read.
    """
    tables = [_by_name(each) for each in options_classes]
    values: list[dict[str, Any]] = [{} for _ in tables]
    for name, value in kwargs.items():
        place = next((number for number, table in enumerate(tables) if name in table), None)
        if place is None:
            raise TypeError(_unexpected_argument(function, name, [each for table in tables for each in table]))
        setting = tables[place][name]
        if setting.name in values[place]:
            raise TypeError(f"{function}() got {setting.name!r} under two names, the second is {name!r}")
        values[place][setting.name] = value_from_python(setting, value)
    return values


def find_setting(options_class: type, name: str, function: str) -> Setting:
    """The setting of this name. Raises TypeError for a name that is no setting."""
    table = _by_name(options_class)
    if name not in table:
        raise TypeError(_unexpected_argument(function, name, list(table)))
    return table[name]


def value_from_python(setting: Setting, value: Any) -> Any:
    """The value of a setting for one of Python. Raises OptionError."""
    if value is None and setting.default is None:
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if setting.option.open_to is not None and callable(value):
        return policy_reference(setting, value)
    if setting.is_list and isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return tuple(_list_items(setting, value))
    return parse_yaml_value(setting, value)


def _list_items(setting: Setting, value: Iterable[Any]) -> list[Any]:
    """The items of a list, texts as they are, commas included."""
    items = [_list_item(setting, each) for each in value]
    if all(isinstance(each, str) for each in items):
        return items
    return list(parse_yaml_value(setting, items))


def _list_item(setting: Setting, value: Any) -> Any:
    if setting.option.open_to is not None and callable(value):
        return policy_reference(setting, value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def policy_reference(setting: Setting, value: Callable[..., Any]) -> str:
    """The name by which a class or a function is found again, in other processes too. Raises OptionError."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        raise OptionError(
            f"{setting.label} must be a name, or a class or function at the top of a module, got {value!r}"
        )
    return f"{module}:{name}"


def signature_of(annotated: type, function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function with each of its keyword arguments, for help texts and completion."""
    own = inspect.signature(function)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        for name, kind in annotated.__annotations__.items()
        if name not in own.parameters
    ]
    return own.replace(parameters=[*named, *more])


def _by_name(options_class: type) -> dict[str, Setting]:
    """The settings by each of their names and the names of their flags."""
    found: dict[str, Setting] = {}
    for setting in options_of(options_class):
        if setting.name not in OMITTED_SETTINGS:
            flags = [] if setting.option.positional else setting.flags
            names = (flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--"))
            found |= dict.fromkeys((setting.name, *names), setting)
    return found


def _unexpected_argument(function: str, name: str, known: Sequence[str]) -> str:
    alike = get_close_matches(name, known, n=1)
    question = f", did you mean {alike[0]!r}?" if alike else ""
    return f"{function}() got an unexpected keyword argument {name!r}{question}"


# Rows with named columns, for pandas, Arrow and plain Python.


class MissingExtraError(BlisError, ImportError):
    """A library that an extra of the installation brings is not there."""


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """Columns of equal length by name. Iteration gives the rows as dictionaries."""

    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = list(self.columns)
        for cells in zip(*self.columns.values(), strict=True):
            yield dict(zip(names, cells, strict=True))

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self.columns[name]

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.columns)})"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return _import_library("pandas", "pandas").DataFrame(dict(self.columns))

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return _import_library("pyarrow", "parquet").table({name: list(each) for name, each in self.columns.items()})


class Tabular:
    """A result whose rows other libraries take. `_ROWS` is the property that has them."""

    _ROWS: ClassVar[str] = "table"

    def to_pandas(self) -> Any:
        """Return the rows as a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return getattr(self, self._ROWS).to_pandas()

    def to_arrow(self) -> Any:
        """Return the rows as a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return getattr(self, self._ROWS).to_arrow()


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of rows; a cell that a row lacks is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: [row.get(name) for row in rows] for name in names})


def _import_library(name: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{name} is missing: {install_command(extra)}") from error


# `run` and `replay`: one simulation. `server`: a mock vLLM server as long as a `with` block runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and percentiles of a latency over a run, in milliseconds; 0 where nothing was measured."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class RunResult(Tabular):
    """The result of a simulation.

    `metrics` is the document that the command prints with --json, and `requests` has a row for each request that
    arrived. TTFT and E2E are per request, and ITL is the time between any two tokens of a request.
    """

    _ROWS: ClassVar[str] = "requests"

    metrics: Mapping[str, Any]
    ttft: Latency
    itl: Latency
    e2e: Latency
    notes: tuple[str, ...]
    """Notes on the settings and on the run, a line each."""
    outcome: "FinishedRun" = field(repr=False)
    """The run with all of its parts. Its attributes are not stable."""

    @property
    def num_requests(self) -> int:
        """Requests that arrived."""
        return len(self.outcome.simulated.requests)

    @property
    def num_completed(self) -> int:
        """Requests that were answered in full."""
        return int(self.metrics["completed_requests"])

    @property
    def duration_s(self) -> float:
        """Simulated seconds from the beginning to the last event."""
        return float(self.metrics["vllm_estimated_duration_s"])

    @property
    def requests_per_s(self) -> float:
        """Completed requests per simulated second."""
        return float(self.metrics["responses_per_sec"])

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per simulated second."""
        return float(self.metrics["tokens_per_sec"])

    @property
    def slo_attainment(self) -> float | None:
        """The share of requests within the targets, None without targets."""
        if not self.outcome.analysis_config.targets:
            return None
        return float(self.metrics.get("slo_attainment", 0.0))

    @cached_property
    def requests(self) -> Table:
        """Each request that arrived: lengths, latencies, its end, its instance."""
        return _request_table(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with --json."""
        return dict(self.metrics)

    def __str__(self) -> str:
        return (
            f"{self.num_completed} of {self.num_requests} requests completed in {self.duration_s:.1f} s: "
            f"{self.requests_per_s:.2f} requests/s, {self.output_tokens_per_s:.1f} output tokens/s; p50 and p99: "
            f"TTFT {self.ttft.p50_ms:.1f}, {self.ttft.p99_ms:.1f} ms, ITL {self.itl.p50_ms:.1f}, "
            f"{self.itl.p99_ms:.1f} ms, E2E {self.e2e.p50_ms:.0f}, {self.e2e.p99_ms:.0f} ms"
        )


def run(**settings: Unpack[RunSettings]) -> RunResult:
    """Simulate a synthetic workload, as `blis run` does.

    Files that settings name are written; nothing is printed. Raises BlisError for bad input.
    """
    from blis_sim.options.progress import no_progress
    from replay.run_command import RunOptions, simulate_run

    options = options_from_kwargs(RunOptions, settings, "run")
    notes: list[str] = []
    return _run_result(options, simulate_run(options, notes.append, no_progress), notes)


def replay(trace: str | PathLike[str], **settings: Unpack[ReplaySettings]) -> RunResult:
    """Simulate a recorded trace, which is named by its header file, as `blis replay` does.

    Files that settings name are written; nothing is printed. Raises BlisError for bad input.
    """
    from blis_sim.engine.cluster.settings import SeededTieBreaker
    from blis_sim.options.progress import no_progress
    from replay.command import simulate_replay
    from replay.replay_options import ReplayOptions

    options = options_from_kwargs(ReplayOptions, settings, "replay", trace=fspath(trace))
    notes: list[str] = []
    outcome = simulate_replay(options, SeededTieBreaker(options.seed), notes.append, no_progress)
    return _run_result(options, outcome, notes)


run.__signature__ = signature_of(RunSettings, run)  # type: ignore[attr-defined]
replay.__signature__ = signature_of(ReplaySettings, replay)  # type: ignore[attr-defined]


def _run_result(options: Any, outcome: "FinishedRun", notes: list[str]) -> RunResult:
    from replay.output.findings import as_json
    from replay.output.report import write_files
    from replay.simulation.record import pool_of, pool_of_known

    found = outcome.findings()
    write_files(options.report, outcome, found)
    record, metrics = outcome.simulated.requests, as_json(found)
    return RunResult(
        metrics=metrics,
        ttft=_latency_figures("ttft", metrics, pool_of_known(record.ttft_us)),
        itl=_latency_figures("itl", metrics, record.tokens.gaps()),
        e2e=_latency_figures("e2e", metrics, pool_of(record.e2e_us[record.is_completed])),
        notes=tuple(notes),
        outcome=outcome,
    )


def _latency_figures(name: str, metrics: Mapping[str, Any], pool: "Pool") -> Latency:
    known = {f"{figure}_ms": float(metrics[f"{name}_{figure}_ms"]) for figure in ("mean", "p90", "p95", "p99")}
    return Latency(p50_ms=pool.percentile_ms(50), **known)


def _request_table(outcome: "FinishedRun") -> Table:
    requests = list(outcome.simulated.requests)
    return Table(
        {
            "request_id": [each.id for each in requests],
            "arrived_at_s": [each.arrived_at / 1e6 for each in requests],
            "outcome": ["unfinished" if each.outcome is None else each.outcome.value for each in requests],
            "prompt_tokens": [each.input_tokens for each in requests],
            "output_tokens": [each.output_tokens for each in requests],
            "ttft_ms": [_in_ms(each.ttft_us) for each in requests],
            "mean_itl_ms": [each.itl_mean_us / 1000 if each.is_completed else None for each in requests],
            "e2e_ms": [_in_ms(each.e2e_us) for each in requests],
            "scheduling_delay_ms": [_in_ms(each.scheduling_delay_us) for each in requests],
            "instance": [each.instance if each.instance >= 0 else None for each in requests],
            "slo_class": [each.row.slo_class for each in requests],
            "tenant_id": [each.row.tenant_id for each in requests],
            "session_id": [each.row.session_id for each in requests],
        }
    )


def _in_ms(value_us: int | None) -> float | None:
    return None if value_us is None else value_us / 1000


_SERVER_DEFAULTS: Mapping[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "enable_fault_control": True,
    "enable_playback_control": True,
}


@contextmanager
def server(model: str | PathLike[str] = "", /, **settings: Unpack[ServeSettings]) -> Iterator[Server]:
    """Run `blis serve` in a process of its own on a free port of this host; it ends with the block.

    Raises BlisError for bad input, and ServerError when the server ends before its port is open.
    """
    from mockserve.options.serve import ServeOptions

    (values,) = values_from_kwargs([ServeOptions], settings, "server")
    for name in _SERVER_DEFAULTS:
        if name in values:
            raise TypeError(f"server() chooses the {name}: read the address from the url of the server")
    values |= {"model_argument": fspath(model), **_SERVER_DEFAULTS}
    options_from(ServeOptions, **values)  # which raises OptionError here, not in the process
    with serving(["-m", "blis_sim.testing"], json.dumps(values).encode()) as running:
        yield running


server.__signature__ = signature_of(ServeSettings, server)  # type: ignore[attr-defined]

# `sweep` and `plan`: many simulations.


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One simulation of a sweep: the settings that vary, and its figures, or the reason why it has none."""

    settings: Mapping[str, Any]
    figures: Mapping[str, float | int | None]
    error: str


@dataclass(frozen=True, kw_only=True)
class SweepResult(Tabular):
    """The result of a sweep: its points in order, and their Pareto frontier."""

    points: tuple[SweepPoint, ...]
    frontier: tuple[SweepPoint, ...]
    notes: tuple[str, ...]
    step_times: str = ""
    """The latency model of all points with its expected error; empty where points name their own."""

    @property
    def table(self) -> Table:
        """A row for each point: the settings that vary, the figures, the error."""
        return table_of([{**each.settings, **each.figures, "error": each.error} for each in self.points])

    def __str__(self) -> str:
        failed = sum(bool(each.error) for each in self.points)
        return f"{len(self.points)} points, {failed} of them failed, {len(self.frontier)} on the Pareto frontier"


def sweep(
    vary: Mapping[str | tuple[str, ...], Sequence[Any]],
    *,
    trace: str | PathLike[str] | None = None,
    **settings: Unpack[SweepSettings],
) -> SweepResult:
    """Simulate every combination of the values in `vary`, as `blis sweep` does, on all cores.

    Settings that vary together are a tuple of names, with a tuple of values for each point.
    With `trace` a recording is replayed, else a workload is generated. Points are kept in a file only where `output`
    names one. A point that cannot be computed has its error. Raises BlisError for bad input.
    """
    from blis_sim.bench.points import Plan
    from blis_sim.bench.sweep_command import SweepOptions, compute_sweep
    from blis_sim.bench.sweep_report import frontier
    from blis_sim.options.progress import no_progress

    found, (own, shared) = _simulated_command(SweepOptions, settings, trace, "sweep")
    varied, coupled = _varied_settings(found.options, vary)
    together = {*varied, *(name for names in coupled for name in names)}
    plan = Plan(found, {name: each for name, each in shared.items() if name not in together}, varied, (), coupled)
    notes: list[str] = []
    with _sweep_file(own):
        result = compute_sweep(options_from(SweepOptions, **own), plan, notes.append, no_progress)
    rows = result.rows
    points = {
        row.key: SweepPoint(settings=row.point.varied, figures=row.outcome.figures, error=row.outcome.error)
        for row in rows
    }
    return SweepResult(
        points=tuple(points.values()),
        frontier=tuple(points[row.key] for row in frontier(rows)),
        notes=tuple(notes),
        step_times=result.step_times,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDeployment:
    """A deployment that meets the targets: instances by pool, costs, what binds, and the figures of its simulation.

    `counts` has one number of instances, or the sizes of the prefill and the decode pool. `headroom` is the share that
    is left of the limit of `binds`.
    """

    gpu: str
    shape: str
    label: str
    counts: tuple[int, ...]
    num_gpus: int
    dollars_per_hour: float
    dollars_per_month: float
    dollars_per_million_tokens: float
    binds: str
    headroom: float
    settings: Mapping[str, Any]
    figures: Mapping[str, float | int | None]


@dataclass(frozen=True, kw_only=True)
class PlanResult(Tabular):
    """The result of a plan: the cheapest deployment of each GPU type and shape, and the cheapest of all."""

    cheapest: PlannedDeployment | None
    """None where no deployment that was tried meets the targets."""
    deployments: tuple[PlannedDeployment, ...]
    """The cheapest of each GPU type and shape that meets the targets, the cheapest first."""
    commands: tuple[str, ...]
    """The command line of `vllm serve` of each pool of the cheapest deployment."""
    document: Mapping[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    answer: "CapacityPlan" = field(repr=False)
    """The answer with all of its parts. Its attributes are not stable."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with --format json."""
        return dict(self.document)

    @property
    def table(self) -> Table:
        """A row for each deployment: GPU, shape, counts, costs, what binds, the figures."""
        names = [each.name for each in fields(PlannedDeployment) if each.name not in ("counts", "settings", "figures")]
        return table_of(
            [
                {**{name: getattr(each, name) for name in names}, "counts": list(each.counts), **each.figures}
                for each in self.deployments
            ]
        )

    def __str__(self) -> str:
        from blis_sim.bench.plan_report import plan_report
        from blis_sim.options.provenance import Provenance

        return plan_report(self.answer, Provenance(command="plan")).text("table").rstrip("\n")


def plan(*, trace: str | PathLike[str] | None = None, **settings: Unpack[PlanSettings]) -> PlanResult:
    """Find the cheapest deployment that meets latency targets under a load, as `blis plan` does, on all cores.

    The load is a generated workload, or with `trace` a recording. Raises BlisError for bad input.
    """
    from blis_sim.bench.plan_command import PlanOptions, find_plan
    from blis_sim.bench.plan_report import document_of
    from blis_sim.bench.points import Plan

    found, (own, shared) = _simulated_command(PlanOptions, settings, trace, "plan")
    notes: list[str] = []
    answer = find_plan(options_from(PlanOptions, **own), Plan(found, shared, {}), notes.append)
    if answer.is_interrupted:
        raise KeyboardInterrupt
    document = document_of(answer)
    met = [_planned_deployment(each) for each in document["answers"] if each["met"]]
    cheapest = document["cheapest"]
    return PlanResult(
        cheapest=None if cheapest is None else _planned_deployment(cheapest),
        deployments=tuple(sorted(met, key=lambda each: each.dollars_per_hour)),
        commands=() if cheapest is None else tuple(each["command"] for each in cheapest["commands"]),
        document=document,
        notes=tuple(notes),
        answer=answer,
    )


sweep.__signature__ = signature_of(SweepSettings, sweep)  # type: ignore[attr-defined]
plan.__signature__ = signature_of(PlanSettings, plan)  # type: ignore[attr-defined]


def _simulated_command(
    options_class: type, given: Mapping[str, Any], trace: str | PathLike[str] | None, function: str
) -> "tuple[Simulation, Sequence[dict[str, Any]]]":
    """Return the simulated command, and the values of the options class and of that command."""
    from blis_sim.bench.simulation_commands import simulation

    found = simulation("run" if trace is None else "replay")
    own, shared = values_from_kwargs([options_class, found.options], given, function)
    return found, (own, shared if trace is None else {**shared, "trace": fspath(trace)})


@contextmanager
def _sweep_file(own: dict[str, Any]) -> Iterator[None]:
    """Yield the file for the points of a sweep: the given one, else a temporary one."""
    if "output" in own:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        own["output"] = str(Path(folder) / "sweep.csv")
        yield


def _varied_settings(
    options_class: type, vary: Mapping[str | tuple[str, ...], Sequence[Any]]
) -> tuple[dict[str, Sequence[Any]], dict[tuple[str, ...], Sequence[tuple[Any, ...]]]]:
    """The values of settings that vary alone, and of those that vary together."""
    alone: dict[str, Sequence[Any]] = {}
    together: dict[tuple[str, ...], Sequence[tuple[Any, ...]]] = {}
    for names, values in vary.items():
        if isinstance(names, str):
            setting = find_setting(options_class, names, "sweep")
            alone[setting.name] = _distinct_values(names, [value_from_python(setting, each) for each in values])
            continue
        settings = [find_setting(options_class, name, "sweep") for name in names]
        rows = [tuple(map(value_from_python, settings, each)) for each in values]
        if any(len(each) != len(names) for each in rows):
            raise OptionError(f"vary must have {len(names)} values for each point of {names}")
        together[tuple(each.name for each in settings)] = _distinct_values(str(names), rows)
    return alone, together


def _distinct_values(name: str, values: list[Any]) -> list[Any]:
    if not values or len(set(values)) < len(values):
        raise OptionError(f"vary must have values for {name}, and each once, got {values!r}")
    return values


def _planned_deployment(found: Mapping[str, Any]) -> PlannedDeployment:
    names = ("gpu", "shape", "label", "binds", "headroom", "settings", "figures")
    costs = ("dollars_per_hour", "dollars_per_month", "dollars_per_million_tokens")
    return PlannedDeployment(
        counts=tuple(found["counts"]), num_gpus=found["gpus"], **{name: found[name] for name in (*names, *costs)}
    )


# `calibrate` and `fit`: recordings against simulations.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricError:
    """One latency of a recording against its simulation, over all requests that have it on both sides.

    `mape` is the mean absolute error of a request as a fraction. `mean_error` that of the mean and `p99_error` that of
    the 99th percentile; both are signed. `pearson_r` is None where nothing correlates.
    """

    count: int
    mape: float
    pearson_r: float | None
    mean_error: float
    p99_error: float
    grade: str


@dataclass(frozen=True, kw_only=True)
class CalibrationResult(Tabular):
    """The result of a calibration. `metrics` has ttft and e2e, and itl where token times are known."""

    _ROWS: ClassVar[str] = "requests"

    metrics: Mapping[str, MetricError]
    noise_floor: Mapping[str, MetricError]
    """Errors of a second recording as a prediction of the first; empty without a second recording."""
    in_words: tuple[str, ...]
    """Findings as sentences."""
    notes: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)
    calibration: "Calibration" = field(repr=False)
    """The comparison with all of its parts. Its attributes are not stable."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command writes with --report."""
        return dict(self.document)

    @cached_property
    def requests(self) -> Table:
        """Each request that both sides have: recorded and simulated latencies."""
        found = self.calibration
        numbers = [row.request_id for row in found.pairing.rows]
        columns: dict[str, list[Any]] = {"request_id": numbers}
        for name, values in found.values.items():
            times = zip(values.real_us.tolist(), values.sim_us.tolist(), strict=True)
            by_number = dict(zip((row.request_id for row in values.rows), times, strict=True))
            for place, side in enumerate(("recorded", found.other)):
                columns[f"{side}_{name}_ms"] = [
                    by_number[number][place] / 1000 if number in by_number else None for number in numbers
                ]
        return Table(columns)

    def __str__(self) -> str:
        return "; ".join(
            f"{name.upper()}: MAPE {each.mape:.1%}, mean {each.mean_error:+.1%}, {each.grade} ({each.count} requests)"
            for name, each in self.metrics.items()
        )


def calibrate(
    trace: str | PathLike[str], simulated: RunResult | None = None, **settings: Unpack[CalibrateSettings]
) -> CalibrationResult:
    """Compare a recording with a simulation of it, as `blis calibrate` does.

    The simulation is the result of `replay`, or the file of results that `sim_results` names. Files that settings name
    are written; nothing is printed. Raises BlisError for bad input.
    """
    from calibrate.command import CalibrateOptions, compare_runs
    from calibrate.report import intervals_of, json_content

    if simulated is not None and "sim_results" in settings:
        raise TypeError("calibrate() takes either the result of replay() or sim_results, got both")
    if not isinstance(simulated, RunResult | None):
        raise TypeError(f"calibrate() takes the result of replay(), and a file as sim_results, got {simulated!r}")
    more = {} if simulated is None else {"sim_results": "the simulation"}
    options = options_from_kwargs(CalibrateOptions, settings, "calibrate", trace=fspath(trace), **more)
    notes: list[str] = []
    found, floor, _ = compare_runs(options, None if simulated is None else _result_table(simulated), notes.append)
    document = json_content(found, floor, lambda: intervals_of(found))
    return CalibrationResult(
        metrics={name: _metric_error(each) for name, each in found.metrics.items()},
        noise_floor={name: _metric_error(each) for name, each in (floor or {}).items()},
        in_words=tuple(document["in_words"]),
        notes=tuple(notes),
        document=document,
        calibration=found,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One learned coefficient, with the standard deviation of what is known of it."""

    name: str
    value: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class FitResult(Tabular):
    """The result of `fit`: coefficients of a latency model, and their errors on requests that were not learned from."""

    latency_model: str
    coefficients: tuple[Coefficient, ...]
    held_out: tuple[Mapping[str, Any], ...]
    """Errors on the last fifth of each recording, predicted by what the rest teaches."""
    notes: tuple[str, ...]
    content: Mapping[str, Any] = field(repr=False)
    """The content of the file of coefficients."""

    def save(self, path: str | PathLike[str]) -> str:
        """Write the file that the setting `coefficients` takes, and return its path. Raises BlisError."""
        from calibrate.fit.coefficients_file import text_of
        from traces.text_file import write_text

        write_text(Path(path), text_of(dict(self.content)))
        return fspath(path)

    @property
    def table(self) -> Table:
        """A row for each coefficient."""
        return table_of([{"name": each.name, "value": each.value, "spread": each.spread} for each in self.coefficients])


def fit(traces: str | PathLike[str] | Sequence[str | PathLike[str]], **settings: Unpack[FitSettings]) -> FitResult:
    """Learn the coefficients of a latency model from recordings of one server, as `blis fit` does.

    A file is written only where `output` names one. Raises BlisError for bad input.
    """
    from blis_sim.options.progress import no_progress
    from calibrate.fit.command import FitOptions, learn_coefficients

    given = [traces] if isinstance(traces, str | PathLike) else traces
    options = options_from_kwargs(FitOptions, settings, "fit", traces=tuple(map(fspath, given)))
    notes: list[str] = []
    fitted = learn_coefficients(options, notes.append, no_progress)
    terms, estimate = fitted.deployed.terms, fitted.learned.estimate
    values = zip(terms.names, estimate.values.tolist(), estimate.spreads.tolist(), strict=True)
    result = FitResult(
        latency_model=fitted.deployed.latency_model,
        coefficients=tuple(Coefficient(name=name, value=value, spread=spread) for name, value, spread in values),
        held_out=tuple(fitted.content["held_out"]),
        notes=tuple(notes),
        content=fitted.content,
    )
    if "output" in settings:
        result.save(options.output)
    return result


calibrate.__signature__ = signature_of(CalibrateSettings, calibrate)  # type: ignore[attr-defined]
fit.__signature__ = signature_of(FitSettings, fit)  # type: ignore[attr-defined]


def _result_table(simulated: RunResult) -> list[Any]:
    from replay.output.metrics import result_rows

    outcome = simulated.outcome
    return list(result_rows(outcome.simulated.requests, outcome.sending.is_chosen_by_run))


def _metric_error(found: "Comparison") -> MetricError:
    return MetricError(
        count=found.count,
        mape=found.mape,
        pearson_r=found.pearson_r,
        mean_error=_relative_error(found.real.mean, found.sim.mean),
        p99_error=_relative_error(found.real.p99, found.sim.p99),
        grade=found.quality,
    )


def _relative_error(real: float, simulated: float) -> float:
    return simulated / real - 1 if real else 0.0
