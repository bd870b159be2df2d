"""The points of a sweep: values that vary, the simulation of one point, one latency model for all, rows in files."""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import combinations, pairwise, product
from math import comb, isfinite, prod
from pathlib import Path
from random import Random
from typing import Any, TypeAlias, TypedDict

from blis_sim.bench import BenchError
from blis_sim.bench.simulation_commands import RECORDINGS, SIMULATIONS, Simulation, digest_of, simulation
from blis_sim.engine.cluster.assembly import first_deployments
from blis_sim.engine.cluster.build import Question, notes_on_cluster, question_of, with_one_latency_model
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import resolve, resolved_once
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.options import BlisError, OptionError, options_of
from blis_sim.options.command_line import flags_of, parse_command_line
from blis_sim.options.custom_metrics import COLUMN_PREFIX, custom_metrics
from blis_sim.options.option import Setting, check_value, find_setting, load_json, parse_value, parse_yaml_value
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from replay.analysis.sampling import SampledRange, sampled_range
from replay.analysis.steady import ResourceUse, resources_of
from replay.output.findings import as_json
from replay.output.metrics import aggregate
from replay.output.report import run_result
from replay.output.table import flat_result
from replay.provenance import least_sure
from traces import beside
from traces.append_file import AppendFile, complete_records, open_with_header
from traces.collector import gc_disabled
from traces.text_file import read_keys, read_yaml, replacing

# The plan of a sweep: a command with its settings, and the values of settings that vary, alone or together.

Rows: TypeAlias = list[tuple[Any, ...]]
"""The values of some settings, together."""

MOST_ROWS = 100_000


def is_coupled(name: str) -> bool:
    """Return whether a name is that of several settings: `a+b` for counts with a sum, `a,b` for lists side by side."""
    return "+" in name or "," in name


def names_of(name: str) -> list[str]:
    """Return the names of the single settings. Raises OptionError for an empty one, or one that is there twice."""
    names = [each.strip() for each in name.split("+" if "+" in name else ",")]
    if "" in names or len(set(names)) < len(names):
        raise OptionError(f"--vary must name settings as a+b=SUM or a,b=1:2,3:4, each once, got {name!r}")
    return names


def rows_of(name: str, values: Any, read: Callable[[int, Any], Any]) -> Rows:
    """Return the values of coupled settings; `values` is text after the equals sign, or a list of a file.

    `read` returns the value of the setting at a place. Raises OptionError.
    """
    names = names_of(name)
    if "+" in name:
        found = [row for total in _totals(name, values) for row in _splits(name, total, len(names))]
    else:
        found = [tuple(row) for row in _lists(name, values, len(names))]
    rows = [tuple(read(place, value) for place, value in enumerate(row)) for row in found]
    if len(set(rows)) < len(rows):
        raise OptionError(f"--vary {name} names values twice")
    return rows


def _totals(name: str, values: Any) -> Iterator[int]:
    for each in values.split(",") if isinstance(values, str) else values:
        text = str(each).strip()
        if not text.isascii() or not text.isdigit():
            raise OptionError(f"--vary {name} must be the sum of counts from 1 on, such as {name}=8, got {each!r}")
        yield int(text)


def _splits(name: str, total: int, num_parts: int) -> Rows:
    """Return all ways in which a total is the sum of so many counts from 1 on, the first part ascending."""
    if total < num_parts:
        raise OptionError(f"--vary {name} must be at least {num_parts}, one of each, got {total}")
    if comb(total - 1, num_parts - 1) > MOST_ROWS:
        raise OptionError(f"--vary {name} must give at most {MOST_ROWS} points, {total} gives more")
    cuts = combinations(range(1, total), num_parts - 1)
    return [tuple(after - before for before, after in pairwise((0, *each, total))) for each in cuts]


def _lists(name: str, values: Any, num_names: int) -> Iterator[Sequence[Any]]:
    """Yield the values side by side, of text such as `64:2048,128:8192` or of a list of lists."""
    given = values
    if isinstance(values, str):
        try:
            given = load_json(values) if values.startswith("[") else [each.split(":") for each in values.split(",")]
        except ValueError as error:
            raise OptionError(f"--vary {name} must have values such as 1:2,3:4, or JSON, got {values!r}") from error
    for row in given:
        if not isinstance(row, list) or len(row) != num_names:
            raise OptionError(f"--vary {name} must have {num_names} values side by side, such as 1:2, got {row!r}")
        yield [each.strip() if isinstance(each, str) else each for each in row]


_DEFAULT_COMMAND = "run"


class SweepFile(TypedDict, total=False):
    """The keys of a file of a sweep; values of settings are read by these."""

    command: str
    settings: Mapping[str, Any]
    vary: Mapping[str, list[Any]]


_MOST_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation: what varies, by name of the setting, and all settings that are given."""

    number: int
    varied: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The varied settings as text."""
        return " ".join(f"{name}={value}" for name, value in self.varied.items()) or "these settings"


@dataclass(frozen=True, slots=True)
class Plan:
    """A command, the settings that all its points share, and the values of the others."""

    simulation: Simulation
    settings: Mapping[str, Any]
    vary: Mapping[str, Sequence[Any]]
    notes: tuple[str, ...] = ()
    """Notes about the names of settings, a line each."""
    coupled: Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]] = field(default_factory=dict)
    """The values that settings have together, by their names."""

    @property
    def varied(self) -> list[str]:
        """The names of all settings that vary, in order."""
        return [*self.vary, *(name for names in self.coupled for name in names)]

    def points(self, sample: int | None = None, seed: int = 0) -> list[Point]:
        """Every combination, the last setting varying fastest; with `sample`, so many of them by chance, in order."""
        axes: list[list[dict[str, Any]]] = [[{name: value} for value in values] for name, values in self.vary.items()]
        axes += [[dict(zip(names, row, strict=True)) for row in rows] for names, rows in self.coupled.items()]
        num_points = prod(map(len, axes))
        if num_points > _MOST_POINTS:
            raise OptionError(f"--vary must give at most {_MOST_POINTS} points, got {num_points}")
        chosen = range(num_points)
        if sample is not None and sample < num_points:
            chosen = sorted(Random(f"{seed}/points").sample(chosen, sample))  # type: ignore[assignment]
        numbers = set(chosen)
        combinations = ({name: each[name] for each in parts for name in each} for parts in product(*axes))
        return [
            Point(number, varied, {**self.settings, **varied})
            for number, varied in enumerate(combinations)
            if number in numbers
        ]

    def paths_read(self) -> list[Path]:
        """Files that points may read: files that settings name, and further files of recordings."""
        values: dict[str, Sequence[Any]] = {name: (value,) for name, value in self.settings.items()}
        values |= self.vary
        for coupled, rows in self.coupled.items():
            values |= dict(zip(coupled, zip(*rows, strict=True), strict=True))
        names = [name for each in values.values() for name in _texts(each)]
        recordings = [name for setting in RECORDINGS for name in _texts(values.get(setting, ()))]
        return [*map(Path, names), *beside(*recordings)]

    def check_some_fit(self, points: Sequence[Point]) -> None:
        """Raise the BlisError of the first point if no point has valid settings."""
        first: BlisError | None = None
        for point in points:
            try:
                resolve(self.simulation.options_with(point.settings).cluster.deployment)
            except BlisError as error:
                first = first or error
            except Exception:  # noqa: BLE001  (the point reports it)
                return
            else:
                return
        if first is not None:
            raise first


def _texts(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, str))


def plan_of(
    words: Sequence[str],
    vary: Sequence[str],
    config: str | None,
    beside: type | None = None,
    searched: Collection[str] = (),
) -> Plan:
    """Return the plan that a command line and a YAML file describe; the command line wins where both have a setting.

    `words` are the command, if it is not `run`, and its flags; `vary` holds `NAME=VALUE,...`. `beside` has the
    settings that were read before. Variables and the file of settings give way to `vary`, and have no say about
    settings in `searched`. Raises BlisError.
    """
    given: SweepFile = {} if config is None else read_keys(config, SweepFile, read_yaml(Path(config)))
    has_command = bool(words) and words[0] in SIMULATIONS
    command = words[0] if has_command else given.get("command", _DEFAULT_COMMAND)
    found = simulation(command)
    settings = dict(_settings_of_file(found, config, given.get("settings", {})))
    known = () if beside is None else flags_of(beside)
    flags = parse_command_line(found.options, words[1:] if has_command else words, parse_value, known)
    by_flags = flags.values
    notes: list[str] = []
    single, coupled = _by_kind(vary)
    vary_by_flags = _vary_of_flags(found, single)
    coupled_by_flags = dict(_coupled_of_flags(found, coupled))
    together = {name for names in coupled_by_flags for name in names}
    _check_varied_once([*vary_by_flags, *(name for names in coupled_by_flags for name in names)])
    for name in by_flags.keys() & ({*vary_by_flags, *together} - flags.places.keys()):
        raise OptionError(f"--vary {name} and one value for it exclude each other, got {by_flags[name]!r}")
    settings |= by_flags
    _check_numbers(found, settings)
    in_file = dict(_vary_of_file(found, config, given.get("vary", {})))
    varied = {name: values for name, values in (in_file | vary_by_flags).items() if name not in together}
    for name in {*varied, *together}:
        settings.pop(name, None)
    for name in sorted(flags.places.keys() & {*searched}):
        del settings[name]
        notes.append(f"{flags.places[name]} has no effect: it is searched")
    return Plan(found, settings, varied, tuple(notes), coupled_by_flags)


def _check_numbers(found: Simulation, settings: Mapping[str, Any]) -> None:
    """Raise OptionError for a number out of bounds, before any arithmetic with it."""
    for setting in options_of(found.options):
        value = settings.get(setting.name)
        if isinstance(value, float) and value != setting.default:
            check_value(setting, value)


def _by_kind(vary: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split texts into those that vary one setting each and those that vary several together."""
    coupled = [each for each in vary if is_coupled(each.partition("=")[0])]
    return [each for each in vary if each not in coupled], coupled


def _coupled_of_flags(found: Simulation, vary: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Rows]]:
    for each in vary:
        name, _, values = each.partition("=")
        if not values:
            raise OptionError(f"--vary must be NAME=VALUE,..., got {each!r}")
        settings = [_setting(found, part, "--vary:") for part in names_of(name)]
        rows = rows_of(name, values, lambda place, value, known=settings: parse_yaml_value(known[place], value))  # type: ignore[misc]
        yield tuple(setting.name for setting in settings), rows


def _check_varied_once(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"--vary names {name} twice: give all of its values at once")


def _vary_of_flags(found: Simulation, vary: Sequence[str]) -> dict[str, Sequence[Any]]:
    varied: dict[str, Sequence[Any]] = {}
    for each in vary:
        name, values = _vary_of_flag(found, each)
        if name in varied:
            raise OptionError(f"--vary names {name} twice: give all of its values at once")
        varied[name] = values
    return varied


def _vary_of_flag(found: Simulation, text: str) -> tuple[str, Sequence[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise OptionError(f"--vary must be NAME=VALUE,..., got {text!r}")
    setting = _setting(found, name, "--vary:")
    try:
        parts = load_json(values) if values.startswith("[") else [part.strip() for part in values.split(",")]
    except ValueError as error:
        raise OptionError(f"--vary {name} must have values with commas, or a JSON list, got {values!r}") from error
    return setting.name, _distinct(setting, [parse_yaml_value(setting, part) for part in parts])


def _vary_of_file(
    found: Simulation, path: str | None, vary: Mapping[str, list[Any]]
) -> Iterator[tuple[str, Sequence[Any]]]:
    for name, values in vary.items():
        if not values:
            raise BenchError(f"{path} key vary.{name}: expected a list of values, got {values!r}")
        setting = _setting(found, name, f"{path} key vary:")
        yield setting.name, _distinct(setting, [_value(setting, value, f"{path} key vary.{name}") for value in values])


def _settings_of_file(found: Simulation, path: str | None, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        setting = _setting(found, name, f"{path} key settings:")
        yield setting.name, _value(setting, value, f"{path} key settings.{name}")


def _value(setting: Setting, value: Any, place: str) -> Any:
    try:
        return parse_yaml_value(setting, value)
    except OptionError as error:
        raise BenchError(f"{place}: {error}") from error


def _setting(found: Simulation, name: str, place: str) -> Setting:
    try:
        return find_setting(found.options, name.strip())
    except OptionError as error:
        raise OptionError(f"{place} {error} of blis {found.name}") from error


def _distinct(setting: Setting, values: Sequence[Any]) -> Sequence[Any]:
    if len(set(values)) < len(values):
        raise OptionError(f"--vary {setting.name} names a value twice")
    return values


# One point: its figures as a flat row, warnings about its step times, and the origin that all points share.

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
_FURTHER = (
    *(f"{name}_p50_ms" for name in ("ttft", "itl", "e2e")),
    *(f"mean_itl_per_request_{figure}_ms" for figure in ("p50", "p99")),
    "steady_requests_per_s",
    "steady_output_tokens_per_s",
    "overload_queue_growth_per_min",
    "overload_offered_per_s",
    "overload_served_per_s",
    "load_arrived_per_s",
    "load_prompt_tokens_mean",
    "load_output_tokens_mean",
    "is_steady",
    "percentile_targets_met",
)
FIGURES = (*_FROM_METRICS, "rejected_requests", "cache_hit_rate", "num_gpus", "gpu_hours_per_million_tokens", *_FURTHER)
"""The figures of a row, in order. Durations and rates as `blis run` has them; tokens are output tokens."""

TITLES: Mapping[str, str] = {
    "responses_per_sec": "requests/s",
    "steady_requests_per_s": "steady/s",
    "tokens_per_sec": "tokens/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "itl_p50_ms": "ITL p50 ms",
    "itl_p99_ms": "ITL p99 ms",
}
"""Titles of the figures that tables show."""

ORIGIN = ("latency_model", "step_error", "blis_version")
"""The origin of a row: from what its step times come, their expected error as a share, and the version."""

COSTS = ("cost_per_hour", "cost_per_million_tokens")
"""Figures that follow from a price per GPU-hour."""

Figures = Mapping[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a point: figures, None where there is none, or the reason why there are none at all.

    `is_unexpected` marks a defect or a lack of memory, as opposed to settings that do not fit together. `is_open` says
    that the run is too short to tell an overload, which longer runs would. `ranges` has the sampling error of figures
    that have a limit, and `notes` what the run says of its requests and settings.
    """

    figures: Figures = field(default_factory=dict)
    error: str = ""
    is_unexpected: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)
    use: ResourceUse | None = None
    is_open: bool = False
    ranges: Mapping[str, SampledRange] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A point to compute: its name, its command and the settings.

    A run that exceeds one of `limits_ms` by far is not judged by longer runs: whether it is overloaded changes nothing.
    """

    key: str
    command: str
    settings: Mapping[str, Any]
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    by_longer: bool = True
    """Whether longer runs judge one that is too short to tell an overload."""


def compute(job: Job) -> Outcome:
    """Simulate one point. Its standard error is dropped."""
    try:
        with resolved_once():
            return _simulated(job)
    except BlisError as error:
        return Outcome(error=_warning_line(error))
    except Exception as error:  # noqa: BLE001  (whatever it is, the other points have nothing to do with it)
        return Outcome(error=f"unexpected {type(error).__name__} {_warning_line(error)}".rstrip(), is_unexpected=True)


def _warning_line(error: Exception) -> str:
    return " ".join(str(error).split())


_BY_FAR = 1.5
"""More than a limit grows with the errors of step times that a plan tries."""


def _simulated(job: Job) -> Outcome:
    chosen = simulation(job.command)
    options = chosen.options_with(job.settings)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), gc_disabled():
        outcome = chosen.simulate(options)
        if job.limits_ms and _exceeds_by_far(aggregate(outcome.simulated), job.limits_ms):
            outcome = outcome._replace(judge=None)
        has_longer = outcome.judge is not None
        judged = outcome if job.by_longer else outcome._replace(judge=None)
        findings = judged.findings()
        found, result = as_json(findings), run_result(options.report, judged, findings)
        described = outcome.describe()
    figures = {name: found.get(name) for name in _FROM_METRICS}
    if options.report.slo_targets and figures["slo_attainment"] is None:  # zero is left out of what a run prints
        figures |= {"goodput_rps": 0.0, "slo_attainment": 0.0}
    breakdown = found.get("breakdown", {})
    # Requests that the cluster rejected, or that its gateway rejected, shed or let expire.
    gateway = breakdown.get("gateway", {})
    at_admission = sum(breakdown.get(name, 0) for name in ("rejected_at_admission", "rejected_at_routing"))
    in_queue = sum(gateway.get(name, 0) for name in ("rejected", "shed", "expired", "evicted"))
    figures["rejected_requests"] = int(at_admission + in_queue)
    figures["cache_hit_rate"] = breakdown.get("cache_hit_rate")
    num_gpus = gpus_of(options.cluster)
    figures["num_gpus"] = num_gpus
    later = flat_result("", result) | {"is_steady": None if result.is_steady is None else int(result.is_steady)}
    tokens_per_s = later["steady_output_tokens_per_s"] or found["tokens_per_sec"]
    figures["gpu_hours_per_million_tokens"] = gpu_hours_per_million_tokens(num_gpus, tokens_per_s)
    figures |= {name: later[name] for name in _FURTHER if name != "percentile_targets_met"}
    checks = found.get("targets")
    figures |= {COLUMN_PREFIX + name: value for name, value in result.custom_metrics.items()}
    figures["percentile_targets_met"] = None if checks is None else int(all(each["is_met"] for each in checks))
    origin = {name: str(getattr(described, name)) for name in ORIGIN}
    ranges = {name: sampled_range(outcome.simulated.requests, name) for name in job.limits_ms}
    is_known = result.is_steady is not False or figures["overload_queue_growth_per_min"] is not None
    return Outcome(
        figures,
        origin=origin,
        use=resources_of(outcome.simulated),
        is_open=has_longer and not job.by_longer and not is_known,
        ranges={name: each for name, each in ranges.items() if each is not None},
        notes=outcome.notes,
    )


def _exceeds_by_far(metrics: Mapping[str, Any], limits_ms: Mapping[str, float]) -> bool:
    return any((metrics.get(name) or 0.0) > _BY_FAR * limit_ms for name, limit_ms in limits_ms.items())


def gpus_of(options: ClusterOptions) -> int:
    """Return the number of GPUs of a deployment at the beginning, all of its instances together."""
    merged = with_one_latency_model(with_policies(options))
    return sum(each.num_gpus for each in first_deployments(merged, resolve(merged.deployment)))


def gpu_hours_per_million_tokens(num_gpus: int, tokens_per_s: float) -> float | None:
    """GPU-hours per million output tokens, at the rate of the steady part of a run; None without output tokens."""
    return num_gpus * 1e6 / tokens_per_s / 3600 if tokens_per_s else None


def costs(figures: Figures, dollars_per_gpu_hour: float) -> Figures:
    """The cost of a deployment per hour and per million output tokens."""
    num_gpus, spent = figures.get("num_gpus"), figures.get("gpu_hours_per_million_tokens")
    return {
        "cost_per_hour": None if num_gpus is None else num_gpus * dollars_per_gpu_hour,
        "cost_per_million_tokens": None if spent is None else spent * dollars_per_gpu_hour,
    }


_LATENCY_SETTINGS = ("model", "hardware", "tp", "latency_model")
_DECIDING_FOR_ALL = ("coefficients", "engine", "model_config_folder", "hardware_config", "policy_config")
_DECIDERS = (
    *_DECIDING_FOR_ALL,
    *(f"{pool}{name}" for pool in ("", "prefill_", "decode_") for name in _LATENCY_SETTINGS),
)
"""The settings that decide from what, and for what, step times were learned."""
_MOST_LINES = 10


def step_time_warnings(simulation: Simulation, points: Sequence[Point]) -> list[str]:
    """Return the warnings of all points, each once; points that cannot be simulated have none."""
    unlike = {repr([point.settings.get(name) for name in _DECIDERS]): point for point in points}
    found: dict[str, None] = {}
    for point in unlike.values():
        found |= dict.fromkeys(_warnings(simulation, point))
    return _first_of(list(found))


def notes_of_points(found: Sequence[tuple[Point, Outcome]]) -> list[str]:
    """Return what simulated points say of their requests and settings, each once, with the point if not all say it."""
    said: dict[str, list[Point]] = {}
    for point, outcome in found:
        for note in dict.fromkeys(outcome.notes):
            said.setdefault(note, []).append(point)
    return _first_of([_note(note, points, len(found)) for note, points in said.items()])


def _note(note: str, points: Sequence[Point], num_points: int) -> str:
    if len(points) == num_points:
        return note
    others = f" and {len(points) - 1} more" if len(points) > 1 else ""
    return f"{points[0].label}{others}: {note}"


def _first_of(lines: list[str]) -> list[str]:
    """Return the lines, or the first of many and how many more there are."""
    if len(lines) > _MOST_LINES:
        return [*lines[:_MOST_LINES], f"warning: and {len(lines) - _MOST_LINES} more like these"]
    return lines


def _warnings(simulation: Simulation, point: Point) -> list[str]:
    try:
        options = with_one_latency_model(with_policies(simulation.options_with(point.settings).cluster))
        deployment = resolve(options.deployment)
        notes = [*deployment.notes, *notes_on_cluster(options, deployment)]
    except BlisError:
        return []
    return [note for note in notes if "warning: " in note]


_MAX_COMPARED_POINTS = 100
"""More points would take longer to look at than is worth it."""


def origin_of(program: str, options: Any, plan: Plan, points: Sequence[Point]) -> Provenance:
    """Return the origin, with GPU, engine and latency model where all points that can be simulated share them."""
    found = [_origin_fields(plan.simulation, point) for point in points] if len(points) <= _MAX_COMPARED_POINTS else []
    known = [each for each in found if each]
    first = known[0] if known else {}
    if known and all(each["latency_model"] == first["latency_model"] for each in known):
        least_sure = max(known, key=lambda each: each["expected_error"])["sureness"]
        known = [{**each, "sureness": least_sure} for each in known]
        first = known[0]
    first = {name: value for name, value in first.items() if name != "expected_error"}
    return Provenance(
        command=command_line(program, options),
        model=str(plan.settings.get("model", "")),
        seed=plan.settings.get("seed"),
        inputs=input_hashes(options, plan.paths_read()),
        **{name: value for name, value in first.items() if all(each[name] == value for each in known)},
    )


def _origin_fields(simulation: Simulation, point: Point) -> dict[str, Any]:
    try:
        options = with_one_latency_model(with_policies(simulation.options_with(point.settings).cluster))
        deployment = resolve(options.deployment)
    except BlisError:
        return {}
    sure = least_sure(options, deployment)
    return {
        "gpu": deployment.gpu.name,
        "gpus_per_instance": deployment.num_gpus,
        "instances": options.num_instances,
        "engine": options.deployment.engine,
        "latency_model": sure.latency_model,
        "step_error": sure.step_error,
        "expected_error": sure.expected_error,
        "sureness": sure.as_json,
    }


# The points of a sweep or a search as one question, whose step times all come from one latency model.

_POOL_SETTINGS = ("model", "hardware", "tp", "pp", "latency_model")
_SETTINGS = (
    *("engine", "dp", "quantization", "dtype", "kv_cache_dtype", "enable_expert_parallel", "enforce_eager"),
    *("moe_backend", "coefficients", "beta_coeffs", "model_config_folder", "hardware_config"),
    *("policy_config", "collectives", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "total_kv_blocks"),
)
_DECIDING = (*_SETTINGS, *(f"{pool}{name}" for pool in ("", "prefill_", "decode_") for name in _POOL_SETTINGS))
"""Settings on which it depends whether a latency model can time a point, and how well."""


@dataclass(frozen=True, slots=True)
class AskedPoints:
    """Points with the latency model of all of them, and why it cannot time some, by the number of the point."""

    points: Sequence[Point]
    question: Question | None
    refusals: Mapping[int, str]

    @property
    def text(self) -> str:
        """The latency model with its expected error; empty where each point has its own."""
        if self.question is None:
            return ""
        count = sum(point.settings.get("latency_model") == self.question.latency_model for point in self.points)
        of = "all" if count == len(self.points) else f"{count} of {len(self.points)} points"
        return self.question.text(len(self.refusals), of)


def asked(simulation: Simulation, points: Sequence[Point]) -> AskedPoints:
    """Return the points with one latency model in place of `auto`. Points that name a latency model keep that."""
    places: dict[str, int] = {}
    clusters: list[ClusterOptions] = []
    place_of: dict[int, int] = {}
    for point in points:
        key = repr([point.settings.get(name) for name in _DECIDING])
        if key not in places:
            options = _cluster(simulation, point.settings)
            places[key] = -1 if options is None else len(clusters)
            clusters += [] if options is None else [options]
        if places[key] >= 0:
            place_of[point.number] = places[key]
    question = question_of(clusters)
    if question is None:
        return AskedPoints(points, None, {})
    resolved = {"latency_model": question.latency_model}
    found = [
        replace(point, settings={**point.settings, **resolved}) if point.number in place_of else point
        for point in points
    ]
    refusals = {number: question.refusal(place) for number, place in place_of.items() if place in question.reasons}
    return AskedPoints(found, question, refusals)


def _cluster(simulation: Simulation, settings: Mapping[str, Any]) -> ClusterOptions | None:
    """Return the cluster of a point that leaves the choice to `auto`; None of another, and of one that is not valid."""
    try:
        options: ClusterOptions = with_policies(simulation.options_with(settings).cluster)
    except BlisError:
        return None
    return options if options.deployment.step_times == AUTO else None


# The rows of a sweep: a CSV file that grows as points are computed, in order when all are, and a Parquet file.

POINT_COLUMN = "point"
NOTES_COLUMN, ERROR_COLUMN = "notes", "error"


@dataclass(frozen=True, slots=True)
class Row:
    """A point that has been computed."""

    key: str
    point: Point
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of rows: settings that vary, the price of a GPU-hour, and the points by key."""

    varied: Sequence[str]
    gpu_cost_per_hour: float | None
    points: Mapping[str, Point]
    custom: Sequence[str] = ()
    """The columns of metrics of other packages."""

    @property
    def figures(self) -> Sequence[str]:
        """The columns of figures."""
        return (*FIGURES, *self.custom)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        return [
            POINT_COLUMN,
            *self.varied,
            *self.figures,
            *(COSTS if self.gpu_cost_per_hour is not None else ()),
            *(name for name in ORIGIN if name not in self.varied),
            NOTES_COLUMN,
            ERROR_COLUMN,
        ]

    def cells(self, row: Row) -> dict[str, Any]:
        """The cells of a row by column; None for a missing value."""
        figures = row.outcome.figures
        priced = {} if self.gpu_cost_per_hour is None else costs(figures, self.gpu_cost_per_hour)
        known = {
            POINT_COLUMN: row.key,
            **row.outcome.origin,
            **row.point.varied,
            **figures,
            **priced,
            NOTES_COLUMN: tuple(row.outcome.notes) or None,
            ERROR_COLUMN: row.outcome.error,
        }
        return {name: known.get(name) for name in self.columns}

    def line(self, row: Row) -> str:
        """The line of a row in the file."""
        return _line(_text(cell) for cell in self.cells(row).values())

    def in_order(self, rows: Sequence[Row]) -> list[Row]:
        """The rows in the order of their points."""
        return sorted(rows, key=lambda row: row.point.number)


def table_of(plan: Plan, points: Sequence[Point], gpu_cost_per_hour: float | None) -> Table:
    """Return the columns and the points of a plan's rows."""
    keys = {digest_of(plan.simulation.name, point.settings): point for point in points}
    custom = [COLUMN_PREFIX + each.name for each in custom_metrics(plan.settings.get("metric", ()))]
    return Table(varied=plan.varied, gpu_cost_per_hour=gpu_cost_per_hour, points=keys, custom=custom)


def read_rows(path: Path, table: Table) -> list[Row]:
    """The rows with figures that a file has already, one for each point; a last line that was cut is none.

    Raises BlisError when they are of other points than those of the table.
    """
    if not path.is_file():
        return []
    advice = "give another --output, or --overwrite to begin anew"
    try:
        records = list(csv.reader(StringIO(complete_records(path))))
    except csv.Error as error:
        raise BenchError(f"{path}: expected comma-separated cells, {error}: {advice}") from error
    if not records:
        return []
    columns, *cells = records
    needed = (POINT_COLUMN, ERROR_COLUMN, *table.varied, *table.figures)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise BenchError(f"{path}: is no sweep of these settings, it has no column {missing[0]}: {advice}")
    rows: dict[str, Row] = {}
    for record in filter(None, cells):
        if len(record) != len(columns):
            raise BenchError(f"{path}: expected {len(columns)} cells as in the header, got {len(record)}: {advice}")
        found = dict(zip(columns, record, strict=True))
        point_key = found[POINT_COLUMN]
        point = table.points.get(point_key)
        if point is None:
            raise BenchError(f"{path}: has a point of other settings, {point_key}: {advice}")
        if not found[ERROR_COLUMN]:
            origin = {name: found[name] for name in ORIGIN if name in found}
            figures, notes = _figures(path, found, table.figures), _notes(path, found.get(NOTES_COLUMN, ""))
            rows[point_key] = Row(point_key, point, Outcome(figures, origin=origin, notes=notes))
    return list(rows.values())


def open_rows(path: Path, table: Table, kept: Sequence[Row]) -> AppendFile:
    """Open the file with its header and the kept rows; an earlier file stays until these are written.

    Raises BlisError.
    """
    try:
        return open_with_header(path, ",".join(table.columns), [table.line(row) for row in kept], is_exclusive=True)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _line(cells: Iterator[str]) -> str:
    written = StringIO()
    csv.writer(written, lineterminator="\n").writerow(list(cells))
    return written.getvalue()


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return json.dumps(cell) if isinstance(cell, tuple | bool) else str(cell)


def _notes(path: Path, cell: str) -> list[str]:
    """The notes of a record. Raises BenchError."""
    try:
        notes = load_json(cell or "[]")
    except ValueError:
        notes = None
    if not isinstance(notes, list) or not all(isinstance(each, str) for each in notes):
        raise BenchError(f"{path}: {NOTES_COLUMN} must be a list of texts in JSON, got {cell!r:.80}")
    return notes


def _figures(path: Path, record: Mapping[str, str], names: Sequence[str]) -> dict[str, float | int | None]:
    """The figures of a record. Raises BenchError."""
    figures: dict[str, float | int | None] = {}
    for name in names:
        try:
            figures[name] = _number(record.get(name, ""))
        except ValueError:
            raise BenchError(
                f"{path} point {record[POINT_COLUMN]} column {name}: expected a number, got {record[name]!r}"
            ) from None
    return figures


def _number(text: str) -> float | int | None:
    if not text:
        return None
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    if not isfinite(number):
        raise ValueError
    return number


def write_parquet(path: str, table: Table, rows: Sequence[Row]) -> None:
    """Write all rows, whole numbers and others as such, lists as lists. Raises BenchError."""
    import pyarrow
    from pyarrow import parquet

    cells = [table.cells(row) for row in rows]
    columns = {
        name: [list(each[name]) if isinstance(each[name], tuple) else each[name] for each in cells]
        for name in table.columns
    }
    try:
        with replacing(Path(path)) as place:
            parquet.write_table(pyarrow.table(columns), place)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {' '.join(str(error).split()).lower()}") from error
