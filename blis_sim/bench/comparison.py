"""The configurations of a comparison, simulated with one set of requests, and their figures as text, JSON and page."""

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from blis_sim.bench.compare_options import CompareOptions
from blis_sim.engine.cluster.build import build_simulation, notes_on_cluster, question_of, timed_by
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.cluster.settings import SeededTieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.engine_defaults import adaptive_blocks
from blis_sim.engine.latency.confidence import Sureness, is_waiting
from blis_sim.options import OptionError, options_from
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.custom_metrics import CustomMetric, custom_metrics, values_of
from blis_sim.options.latency_targets import TargetCheck, checks_columns, checks_json, figure_words
from blis_sim.options.provenance import Provenance
from blis_sim.report.figures import Panel, cdf_panel, time_panel
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, duration
from replay.analysis.breakdown import DeadlineFigures, deadline_figures, notes_on_targets, with_deadlines
from replay.analysis.on_demand import goodput
from replay.analysis.result import ClassAttainment, mean_result, verdicts_of
from replay.closed_loop import labels_of, requests_for_model, simulate_workload
from replay.output.findings import notes_on_run, target_checks
from replay.output.metrics import aggregate
from replay.provenance import least_sure
from replay.report_options import LEAST_ATTAINMENT
from replay.simulation.record import NEVER
from replay.simulation.simulate import Simulated
from traces import SloTargets
from traces.goodput import Goodput
from traces.workload.generate import generate, read_spec_at
from traces.workload.request import Workload
from traces.workload.spec import Scenario, WorkloadSpec

# The configurations of a comparison, and the simulation of one configuration with one set of requests.

_MODEL = "qwen/qwen3-14b"
"""The model of sides that name none."""
_CURRENT = ("--snapshot-refresh-interval", "0", "--cache-signal-delay", "0")
_ADAPTIVE = ("--engine", "adaptive", "--routing-policy", "weighted", "--routing-scorers", "cache-utilisation:1")
_FIFO = ("--engine", "adaptive-fifo")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration with its name."""

    name: str
    flags: str
    cluster: ClusterOptions
    deployment: Deployment

    @property
    def sureness(self) -> Sureness:
        """The errors to expect of the least sure of its deployments."""
        return least_sure(self.cluster, self.deployment)

    @property
    def notes(self) -> list[str]:
        """Notes on the configuration, shown before a run."""
        return [*self.deployment.notes, *notes_on_cluster(self.cluster, self.deployment)]


class Uncovered(NamedTuple):
    """A configuration that the latency model of the others cannot time, and why."""

    name: str
    flags: str
    reason: str


class Sides(NamedTuple):
    """The configurations of a comparison: those that are simulated, and those that are not."""

    covered: list[Configuration]
    uncovered: list[Uncovered]


def sides_of(options: CompareOptions) -> Sides:
    """Return the configurations of the options. Raises BlisError for an invalid one, and where none is simulated."""
    if options.baseline:
        shared = shlex.split(options.sides[0]) if options.sides else []
        workers = ["--num-instances", str(options.workers)]
        if options.kv_slots is not None:
            workers += ["--total-kv-blocks", str(adaptive_blocks(options.kv_slots))]
        if options.batch_size is not None:
            workers += ["--max-num-seqs", str(options.batch_size)]
        given = {"adaptive": [*_ADAPTIVE, *_CURRENT, *workers, *shared], "fifo": [*_FIFO, *workers, *shared]}
    else:
        given = {chr(ord("A") + number): shlex.split(side) for number, side in enumerate(options.sides)}
    names = [name.strip() for name in options.names.split(",")] if options.names else list(given)
    if len(names) != len(given) or len(set(names)) != len(names):
        raise OptionError(f"--names must be {len(given)} different names, got {options.names!r}")
    clusters = [_cluster(arguments) for arguments in given.values()]
    question = question_of(clusters)
    sides = Sides([], [])
    for place, (name, arguments) in enumerate(zip(names, given.values(), strict=True)):
        cluster, flags = clusters[place], shlex.join(arguments)
        if question is not None and (refusal := question.refusal(place)):
            sides.uncovered.append(Uncovered(name, flags, refusal))
            continue
        if question is not None:
            cluster = timed_by(cluster, question.latency_model)
        sides.covered.append(Configuration(name, flags, cluster, resolve(cluster.deployment)))
    if not sides.covered:
        name, _, reason = sides.uncovered[0]
        raise OptionError(f"{name} is {reason}; --latency-model on every side names another")
    return sides


def _cluster(arguments: list[str]) -> ClusterOptions:
    found = parse_command_line(ClusterOptions, arguments)
    if found.requests_help:
        raise OptionError("flags of a configuration are those of `blis run`; see `blis run --help`")
    return with_policies(options_from(ClusterOptions, **{"model": _MODEL, **found.values}))


WINDOW_S = 10.0
"""The published adaptive scheduler counts tokens of so many seconds."""
DRAIN_S = 2.0
"""The run stops so long after the last arrival may have come."""

Micros = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """A workload with the seed of the router's tie-breaks, and the seconds for which requests are sent."""

    workload: Workload
    seed: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Samples:
    """Counters of a run at instants: seconds, and preemptions so far."""

    at_s: list[float] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one configuration. Times are seconds from the start of the run."""

    submitted: int
    arrived_s: npt.NDArray[np.float64]
    scheduled_s: npt.NDArray[np.float64]
    """Not a number for requests that were never scheduled."""
    first_s: npt.NDArray[np.float64]
    ended_s: npt.NDArray[np.float64]
    """Not a number for requests that did not complete."""
    output_tokens: npt.NDArray[np.int64]
    instance: npt.NDArray[np.int64]
    late: npt.NDArray[np.bool_]
    """Whether each request missed its deadline."""
    has_hit: npt.NDArray[np.bool_]
    """Whether each request found a part of its prompt in the prefix cache of its instance."""
    token_s: npt.NDArray[np.float64]
    """Instants that brought tokens, ascending."""
    token_counts: npt.NDArray[np.float64]
    """Tokens of each of these instants."""
    samples: Samples
    deadlines: DeadlineFigures
    duration_s: float
    token_hit_rate: float
    """Share of all prompt tokens that were found in a prefix cache."""
    preemptions: int
    accepted_per_draft: float
    expected_per_draft: float
    speedup_estimate: float
    num_instances: int
    notes: Sequence[str]
    """Remarks on the requests, and on targets that hold for none of them."""
    custom_metrics: Mapping[str, float]
    """Metrics of other packages by name."""
    checks: Sequence[TargetCheck]
    """Percentiles of latencies beside their targets."""
    verdicts: Sequence[ClassAttainment]
    """The judgement of each class with targets for single requests."""
    goodput: Goodput | None
    """Requests within these targets; None without any."""
    warnings: Sequence[str] = ()
    """Findings of the run about its configuration, such as steps outside the range of the coefficients."""


def workload_of(options: CompareOptions, number: int) -> Requests:
    """The requests of the run of this number. Raises BlisError."""
    spec = _spec_of(options)
    seed = (spec.seed if options.seed is None else options.seed) + number
    workload = generate(replace(spec, seed=seed))
    last_s = workload.last_arrival_us / 1e6
    return Requests(workload, seed, options.duration if options.workload_spec is None else last_s)


def _spec_of(options: CompareOptions) -> WorkloadSpec:
    if options.workload_spec is not None:
        return read_spec_at(options.workload_spec, options.rate)
    scenario = Scenario(name=options.workload, rate=options.rate, duration_s=options.duration)
    return WorkloadSpec(version="2", seed=42, scenario=scenario)


@dataclass(frozen=True, slots=True)
class Judging:
    """The measures of each run: targets, and metrics of other packages."""

    limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Limits of percentiles by figure, such as `ttft_p99_ms`."""
    targets: Mapping[str, SloTargets] = field(default_factory=dict)
    """Targets of single requests by SLO class."""
    least_attainment: float = LEAST_ATTAINMENT
    metrics: Sequence[CustomMetric] = ()

    @property
    def has_targets(self) -> bool:
        """Whether there is a target."""
        return bool(self.limits_ms or self.targets)


def judging_of(options: CompareOptions) -> Judging:
    """Return what the options ask for. Raises OptionError."""
    metrics = custom_metrics(options.metric)
    return Judging(options.targets.targets_ms, options.slo_targets, options.min_attainment, metrics)


_UNJUDGED = Judging()


def simulate_configuration(side: Configuration, requests: Requests, judging: Judging = _UNJUDGED) -> Run:
    """Simulate the requests and take the figures. Raises OptionError for a metric that fails."""
    cluster = with_deadlines(side.cluster, judging.targets or requests.workload.goodput_slo_targets)
    deployment = side.deployment if cluster is side.cluster else resolve(cluster.deployment)
    simulation = build_simulation(cluster, deployment, ties=SeededTieBreaker(requests.seed))
    notes = list(requests.workload.notes)
    workload = requests_for_model(cluster.deployment.model, requests.workload, notes.append)
    if labels_of(workload, "adapter") - {""}:
        notes.append("adapters change no time in a comparison")
    times: list[tuple[int, Micros]] = []
    samples = Samples()

    def sample() -> None:
        now_s = (simulation.now or 0) / 1e6
        if not samples.at_s or now_s >= samples.at_s[-1] + 0.25:
            samples.at_s.append(now_s)
            samples.preemptions.append(sum(engine.counters.num_preemptions for engine in simulation.instances))

    simulated = simulate_workload(
        simulation, workload, None, sample, lambda number, instants: times.append((number, instants))
    )
    run = _run(simulated, times, samples, requests.duration_s, judging)
    num_requests = 0 if workload.horizon_us else len(workload.rows)
    warnings = tuple(notes_on_run(simulated, deployment, cluster.kills, num_requests))
    return replace(run, notes=(*notes, *run.notes), warnings=warnings)


def _token_hit_rate(engines: Iterable[Engine]) -> float:
    """The share of all prompt tokens that were found in a prefix cache: instances without requests do not count."""
    caches = [engine.kv for engine in engines]
    queried = sum(kv.queried_tokens for kv in caches)
    return sum(kv.hit_tokens for kv in caches) / queried if queried else 0.0


def _run(
    simulated: Simulated, times: list[tuple[int, Micros]], samples: Samples, duration_s: float, judging: Judging
) -> Run:
    found = _goodput_of(simulated, judging.targets) if judging.targets else None
    limits_ms = judging.limits_ms
    record, engines = simulated.requests, list(simulated.simulation.instances)
    config = engines[0].config
    output = dict(zip(record.numbers.tolist(), record.output_tokens.tolist(), strict=True))
    instants = np.concatenate([at for _, at in times]) if times else np.zeros(0, np.int64)
    counts = np.concatenate([np.full(len(at), output[n] / max(1, len(at))) for n, at in times]) if times else instants
    order = np.argsort(instants, kind="stable")
    arrived_us = record.arrived_at
    scheduled_s, first_s, ended_s = (
        np.where(after_us == NEVER, np.nan, (arrived_us + after_us) / 1e6)
        for after_us in (record.scheduling_delay_us, record.ttft_us, record.e2e_us)
    )
    counted = replace(config.urgency, ends_late_requests=False)
    due_us = [counted.deadline_of(row, at) for row, at in zip(record.rows, arrived_us.tolist(), strict=True)]
    drafts = sum(engine.counters.num_drafts for engine in engines)
    accepted = sum(engine.counters.num_accepted_tokens for engine in engines)
    speculation = config.speculation
    return Run(
        submitted=len(record),
        arrived_s=arrived_us / 1e6,
        scheduled_s=scheduled_s,
        first_s=first_s,
        ended_s=ended_s,
        output_tokens=record.output_tokens,
        instance=record.instance,
        late=~(ended_s <= np.array(due_us) / 1e6),
        has_hit=record.cached_tokens > 0,
        token_s=instants[order] / 1e6,
        token_counts=np.asarray(counts, np.float64)[order],
        samples=samples,
        deadlines=deadline_figures(record, config.urgency),
        duration_s=duration_s,
        token_hit_rate=_token_hit_rate(engines),
        preemptions=sum(engine.counters.num_preemptions for engine in engines),
        accepted_per_draft=accepted / drafts if drafts else 0.0,
        expected_per_draft=0.0 if speculation is None else speculation.expected_accepted_tokens,
        speedup_estimate=0.0 if speculation is None else speculation.theoretical_speedup,
        num_instances=len(engines),
        notes=tuple(notes_on_targets(judging.targets, record)),
        custom_metrics=values_of(judging.metrics, simulated),
        checks=target_checks(record, limits_ms, aggregate(simulated)) if limits_ms else (),
        verdicts=tuple(verdicts_of(judging.targets, found, judging.least_attainment)),
        goodput=found,
    )


def _goodput_of(simulated: Simulated, targets: Mapping[str, SloTargets]) -> Goodput:
    record = simulated.requests
    return goodput(record, targets, simulated.simulation.clock / 1e6)


# The figures of a comparison, its answer, and a live table.


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table of a comparison."""

    label: str
    of: Callable[[Run], float]
    digits: int = 1
    divides_first: bool = False
    """Whether the row has the first configuration's value divided by that of each."""
    latency: str = ""
    """The latency that the row is of, `ttft` or `itl`, where its errors on servers are known."""

    def value(self, of_seed: Sequence[Run], place: int) -> float:
        """The cell of the configuration at this place, from the runs of all of them with the same requests."""
        value = self.of(of_seed[place])
        if not self.divides_first:
            return value
        return self.of(of_seed[0]) / value if value else 0.0


def throughput(run: Run) -> float:
    """Output tokens per second, from the first arrival to the last token."""
    if not len(run.token_s):
        return 0.0
    span_s = float(run.token_s[-1] - run.arrived_s.min())
    return float(run.token_counts.sum()) / span_s if span_s > 0 else 0.0


def window_throughput(run: Run, at_s: float | None = None) -> float:
    """Output tokens per second of the last ten seconds before an instant, by default two seconds after the load."""
    at_s = run.duration_s + DRAIN_S if at_s is None else at_s
    inside = (run.token_s > at_s - WINDOW_S) & (run.token_s <= at_s)
    return float(run.token_counts[inside].sum()) / WINDOW_S


def ttft_percentile_ms(run: Run, percent: float, until_s: float = math.inf) -> float:
    """A percentile of the time to the first token, of requests that had it by an instant."""
    seen = run.first_s <= until_s
    waits = (run.first_s - run.arrived_s)[seen]
    return float(np.percentile(waits, percent)) * 1000 if len(waits) else 0.0


def mean_tbt_ms(run: Run, until_s: float = math.inf) -> float:
    """Mean time between the tokens of a request."""
    done = (run.ended_s <= until_s) & (run.output_tokens > 1)
    gaps = (run.output_tokens[done] - 1).sum()
    return float((run.ended_s - run.first_s)[done].sum() / gaps) * 1000 if gaps else 0.0


def hit_rate(run: Run, until_s: float = math.inf) -> float:
    """The share of requests whose prompt was found in a prefix cache, at least in part, of those scheduled by then."""
    seen = run.scheduled_s <= until_s
    return float(run.has_hit[seen].mean()) if seen.any() else 0.0


def mean_queue_depth(run: Run) -> float:
    """Mean number of requests that wait to be scheduled for the first time, by Little's law."""
    waits = np.nan_to_num(run.scheduled_s - run.arrived_s)
    span_s = float(np.nanmax(run.ended_s, initial=0.0) - run.arrived_s.min()) if run.submitted else 0.0
    return float(waits.sum()) / span_s if span_s > 0 else 0.0


def queue_depth(run: Run, at_s: float) -> int:
    """Requests that wait to be scheduled for the first time at an instant."""
    return int(((run.arrived_s <= at_s) & ~(run.scheduled_s <= at_s)).sum())


def figures_of(runs: Sequence[Run]) -> list[Figure]:
    """The rows for these runs."""
    classes = sorted({name for run in runs for name in run.deadlines.counts})
    rows = [
        Figure("Requests", lambda run: run.submitted, 0),
        Figure("Completed", lambda run: int((run.ended_s >= 0).sum()), 0),
        Figure("Throughput (tok/s)", throughput, 0),
        Figure("Throughput, last 10 s (tok/s)", window_throughput, 0),
        Figure("TTFT p50 (ms)", lambda run: ttft_percentile_ms(run, 50), latency="ttft"),
        Figure("TTFT p99 (ms)", lambda run: ttft_percentile_ms(run, 99), latency="ttft"),
        Figure("TBT mean (ms)", mean_tbt_ms, 2, latency="itl"),
    ]
    if classes:
        rows.append(Figure("SLO violations (%)", lambda run: 100 * run.deadlines.share, 2))
        rows += [Figure(f"SLO violations, {name} (%)", _share_of(name), 2) for name in classes]
    rows += [
        Figure("KV hit rate (%)", lambda run: 100 * hit_rate(run)),
        Figure("KV hit rate, tokens (%)", lambda run: 100 * run.token_hit_rate),
        Figure("Preemptions", lambda run: run.preemptions, 0),
        Figure("Queue depth, mean", mean_queue_depth, 2),
    ]
    if any(run.expected_per_draft for run in runs):
        rows += [
            Figure("Accepted per draft", lambda run: run.accepted_per_draft, 2),
            Figure("Accepted per draft, expected", lambda run: run.expected_per_draft, 2),
            Figure("Speed-up of decoding", mean_tbt_ms, 2, divides_first=True),
            Figure("Speed-up of drafts, by formula", lambda run: run.speedup_estimate, 2),
        ]
    if any(run.goodput for run in runs):
        rows += [
            Figure("Goodput (requests/s)", lambda run: run.goodput.per_s if run.goodput else 0.0, 2),
            Figure("Within all targets (%)", lambda run: 100 * run.goodput.share if run.goodput else 0.0, 2),
        ]
    names = runs[0].custom_metrics if runs else ()
    return rows + [Figure(name, partial(_custom_metric, name), 2) for name in names]


def _custom_metric(name: str, run: Run) -> float:
    return run.custom_metrics[name]


def _share_of(name: str) -> Callable[[Run], float]:
    def share(run: Run) -> float:
        count = run.deadlines.counts.get(name, 0)
        return 100 * run.deadlines.violations.get(name, 0) / count if count else 0.0

    return share


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of paired differences, and half the width of its 95 % interval."""

    mean: float
    half_width: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.mean) > self.half_width


_MOST_TABULATED = 31


def paired_difference(first: Sequence[float], other: Sequence[float]) -> Difference | None:
    """How much `other` exceeds `first` in runs with the same requests; None with fewer than two."""
    if len(first) < 2:
        return None
    differences = [after - before for before, after in zip(first, other, strict=True)]
    from scipy.special import stdtrit  # takes a tenth of a second to load

    # As printed tables have Student's t at 97.5 %, which end at 30 degrees of freedom.
    quantile = round(float(stdtrit(len(first) - 1, 0.975)), 3) if len(first) <= _MOST_TABULATED else 1.96
    return Difference(fmean(differences), quantile * stdev(differences) / math.sqrt(len(differences)))


Runs = Sequence[Sequence[Run]]
"""For each seed the run of each side."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one configuration, by the means of its runs."""

    checks: Sequence[TargetCheck]
    verdicts: Sequence[ClassAttainment]

    @property
    def meets_targets(self) -> bool:
        """Whether all targets are met."""
        return all(check.is_met for check in self.checks) and all(each.is_met for each in self.verdicts)

    @property
    def columns(self) -> dict[str, Any]:
        """The verdict as columns of a table."""
        return {**checks_columns(self.checks), "meets_targets": self.meets_targets}

    @property
    def json(self) -> dict[str, Any]:
        """The verdict ready for JSON."""
        classes = [{**asdict(each), "is_met": each.is_met} for each in self.verdicts]
        return {"targets": checks_json(self.checks), "classes": classes, "meets_targets": self.meets_targets}


def judgement_of(runs: Sequence[Run]) -> Judgement:
    """Return the verdict on a configuration from its runs with different seeds."""
    checks = [
        each[0]._replace(
            found_ms=None if any(one.found_ms is None for one in each) else fmean(one.found_ms for one in each)
        )
        for each in zip(*(run.checks for run in runs), strict=True)
    ]
    return Judgement(checks, mean_result([run.verdicts for run in runs]))


def judgements_of(runs: Runs) -> list[Judgement]:
    """Return the verdict on each configuration."""
    return [judgement_of([of_seed[place] for of_seed in runs]) for place in range(len(runs[0]))]


def comparison_report(
    sides: Sequence[Configuration],
    runs: Runs,
    uncovered: Sequence[Uncovered],
    origin: Callable[[], Provenance],
    judgements: Sequence[Judgement] = (),
) -> Report:
    """Return the answer: a table of means over seeds with intervals, verdicts, and the pictures of the first run."""
    figures = figures_of([run for of_seed in runs for run in of_seed])
    values = {figure: [[figure.value(of_seed, place) for of_seed in runs] for place in range(len(sides))]
              for figure in figures}  # fmt: skip
    intervals = _intervals(sides, values, runs[0])

    def data() -> dict[str, dict[str, Any]]:
        content: dict[str, dict[str, Any]] = {
            side.name: {
                "flags": side.flags,
                "latency_model": side.deployment.latency_name,
                "sureness": side.sureness.as_json,
                "runs": [{each.label: round(values[each][place][number], 6) for each in figures}
                         for number in range(len(runs))],
                "intervals_90": {label: list(of_sides[place] or ()) for label, of_sides in intervals.items()},
                **(judgements[place].json if judgements else {}),
            }
            for place, side in enumerate(sides)
        }  # fmt: skip
        return content | {
            each.name: {"flags": each.flags, "not_covered": each.reason, "runs": []} for each in uncovered
        }

    def rows() -> Iterator[dict[str, Any]]:
        for place, side in enumerate(sides):
            for number in range(len(runs)):
                known = {"configuration": side.name, "flags": side.flags, "run": number}
                known |= {each.label: values[each][place][number] for each in figures}
                yield known | (judgements[place].columns if judgements else {})

    def remarks() -> Iterator[str]:
        yield from (f"{side.name}: {side.flags or 'the defaults'}" for side in sides)
        yield from (f"{each.name}: {each.flags or 'the defaults'}: {each.reason}" for each in uncovered)
        if judgements:
            meeting = [side.name for side, each in zip(sides, judgements, strict=True) if each.meets_targets]
            yield f"targets met by {' and '.join(meeting)}" if meeting else "targets MISSED by all configurations"
        if len(runs) > 1:
            yield f"Means of {len(runs)} seeds. * marks differences whose 95 % interval leaves out 0."
            yield "Pictures show the first seed."

    return Report(
        title=f"Comparison of {' and '.join(side.name for side in sides)}",
        origin=origin,
        data=data,
        rows=rows,
        lead=lambda: step_times_lines(sides, len(uncovered)),
        sections=lambda: [*_sections(sides, values, intervals), *_verdict_sections(sides, judgements)],
        remarks=remarks,
        panels=lambda: panels_of(sides, runs[0]),
    )


Values = Mapping[Figure, Sequence[Sequence[float]]]
"""For each figure, by side, the values of all seeds."""
Intervals = Mapping[str, Sequence[tuple[float, float] | None]]
"""For each latency, by side, between which values nine servers of ten lie, if that is known."""


def _intervals(sides: Sequence[Configuration], values: Values, of_seed: Sequence[Run]) -> Intervals:
    waits = list(map(_requests_wait, of_seed))
    found = {}
    for figure, of_sides in values.items():
        if figure.latency:
            found[figure.label] = [
                side.sureness.interval_ms(figure.latency, fmean(of_side), 0.9, waiting=waiting)
                for side, of_side, waiting in zip(sides, of_sides, waits, strict=True)
            ]
    return {label: each for label, each in found.items() if any(each)}


def _requests_wait(run: Run) -> bool:
    """Return whether completed requests wait for their first token, on average."""
    is_done = run.ended_s >= 0
    ttft_s, e2e_s = ((ends - run.arrived_s)[is_done] for ends in (run.first_s, run.ended_s))
    return bool(is_done.any()) and is_waiting(float(ttft_s.mean()), float(e2e_s.mean()))


def _sections(sides: Sequence[Configuration], values: Values, intervals: Intervals) -> Iterator[Section]:
    names = [side.name for side in sides]
    rows = [
        [figure.label, *(f"{fmean(of_side):,.{figure.digits}f}" for of_side in of_sides)]
        for figure, of_sides in values.items()
    ]
    yield Section(table=TextTable(["", *names], rows))
    if any(len(of_sides[0]) > 1 for of_sides in values.values()):
        titles = ["", *(f"{name} - {names[0]}" for name in names[1:])]
        rows = [
            [figure.label, *(_difference(first, other, figure) for other in others)]
            for figure, (first, *others) in values.items()
        ]
        yield Section("differences, with 95 % intervals over seeds", TextTable(titles, rows))
    if intervals:
        rows = [
            [label, *("-" if each is None else f"{each[0]:,.1f} to {each[1]:,.1f}" for each in of_sides)]
            for label, of_sides in intervals.items()
        ]
        heading = "90 % intervals of one server, by the errors on servers like it"
        yield Section(heading, TextTable(["", *names], rows))


def _verdict_sections(sides: Sequence[Configuration], judgements: Sequence[Judgement]) -> Iterator[Section]:
    """Yield a table with a row for each target and a column for each configuration."""
    if not judgements:
        return
    cells: dict[str, list[str]] = {}
    for each in judgements:
        for check in each.checks:
            label = f"{figure_words(check.name)} at most {duration(check.limit_ms)}"
            found = "none" if check.found_ms is None else duration(check.found_ms)
            cells.setdefault(label, []).append(f"{found} {_verdict(check.is_met)}")
        for verdict in each.verdicts:
            label = f"{100 * verdict.least_attainment:.4g} % of {verdict.slo_class} within its targets"
            cells.setdefault(label, []).append(_attainment(verdict))
    rows = [[label, *of_sides] for label, of_sides in cells.items()]
    rows.append(["all targets", *(_verdict(each.meets_targets) for each in judgements)])
    yield Section(table=TextTable(["target", *(side.name for side in sides)], rows))


def _attainment(found: ClassAttainment) -> str:
    return f"{found.attainment:.1%} {_verdict(found.is_met)}" if found.count else "no requests"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def step_times_lines(sides: Sequence[Configuration], num_uncovered: int) -> list[str]:
    """Return the latency model of all sides with its expected error, or a line for each side where they differ."""
    if len({side.deployment.latency_name for side in sides}) > 1:
        return [f"{side.name}: {side.deployment.latency_name} step times ({side.sureness.text})" for side in sides]
    stated = max((side.sureness for side in sides), key=lambda each: each.expected_error)
    without = f"; {num_uncovered} not covered" if num_uncovered else ""
    return [f"step times of all by {stated.latency_model}: {stated.text}{without}"]


def _difference(first: Sequence[float], other: Sequence[float], figure: Figure) -> str:
    found = paired_difference(first, other)
    assert found is not None
    digits = max(1, figure.digits)
    star = "*" if found.is_significant else " "
    return f"{found.mean:+,.{digits}f} ± {found.half_width:,.{digits}f}{star}"


_FRAMES_PER_S = 4
_HOME = "\x1b[H\x1b[J"


def play(sides: Sequence[Configuration], runs: Sequence[Run], speed: float, terminal: TextIO) -> None:
    """Show one run of each side, in seconds of simulated time by `speed`; with 0 a frame per second, without pause.

    A terminal shows each frame in the place of the one before; elsewhere frames follow each other.
    """
    last_s = max(max(run.duration_s + DRAIN_S, float(np.nanmax(run.ended_s, initial=0.0))) for run in runs)
    step_s = speed / _FRAMES_PER_S if speed else 1.0
    begun_s = time.monotonic()
    now_s, number = 0.0, 0
    while now_s < last_s:
        number += 1
        now_s = min(number * step_s, last_s)
        if speed:
            time.sleep(max(0.0, begun_s + number / _FRAMES_PER_S - time.monotonic()))
        terminal.write((_HOME if terminal.isatty() else "") + frame(sides, runs, now_s) + "\n")
        terminal.flush()


def frame(sides: Sequence[Configuration], runs: Sequence[Run], now_s: float) -> str:
    """The table at an instant."""
    columns = [_column(run, now_s) for run in runs]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    table = TextTable(["Metric", *(side.name for side in sides)], rows)
    return "\n".join([f"{now_s:.2f} s of simulated time", *table.lines()])


def _column(run: Run, now_s: float) -> dict[str, str]:
    done = run.ended_s <= now_s
    running = (run.scheduled_s <= now_s) & ~done
    sampled = int(np.searchsorted(run.samples.at_s, now_s, side="right")) - 1
    late = run.late[done].mean() if done.any() else 0.0
    return {
        "Throughput (tok/s)": f"{window_throughput(run, now_s):,.0f}",
        "TTFT P50 (ms)": f"{ttft_percentile_ms(run, 50, now_s):.1f}",
        "TTFT P99 (ms)": f"{ttft_percentile_ms(run, 99, now_s):.1f}",
        "Avg TBT (ms)": f"{mean_tbt_ms(run, now_s):.2f}",
        "SLO Violation %": f"{100 * late:.1f}%",
        "KV Hit Rate": f"{100 * hit_rate(run, now_s):.1f}%",
        "Preemptions": str(run.samples.preemptions[sampled]) if sampled >= 0 else "0",
        "Completed Requests": str(int(done.sum())),
        "Queue Depth": str(queue_depth(run, now_s)),
        "Instances Busy": f"{len(set(run.instance[running].tolist()))}/{run.num_instances}",
    }


_BINS = 44


def panels_of(sides: Sequence[Configuration], runs: Sequence[Run]) -> list[Panel]:
    """Return throughput, time to the first token, queue and missed deadlines over time, and how TTFT is distributed."""
    end_s = max((float(np.nanmax(run.ended_s, initial=0.0)) for run in runs), default=0.0) or 1.0
    edges = np.linspace(0, end_s, _BINS + 1)
    middles, width_s = (edges[1:] + edges[:-1]) / 2, end_s / _BINS
    rates, halves, tails, depths, late, ttfts = ({} for _ in range(6))
    for side, run in zip(sides, runs, strict=True):
        tokens, _ = np.histogram(run.token_s, edges, weights=run.token_counts)
        missed, _ = np.histogram(run.arrived_s[run.late], edges)
        rates[side.name] = (middles, tokens / width_s)
        halves[side.name] = (middles, np.array(_ttft_ms(run, edges, 50)))
        tails[side.name] = (middles, np.array(_ttft_ms(run, edges, 99)))
        depths[side.name] = (edges, np.array([queue_depth(run, float(at_s)) for at_s in edges], np.float64))
        late[side.name] = (edges[1:], np.cumsum(missed).astype(np.float64))
        ttfts[side.name] = ((run.first_s - run.arrived_s)[np.isfinite(run.first_s)]) * 1000
    panels = [
        time_panel("Output tokens per second", "output tokens/s", rates),
        time_panel("Median TTFT by arrival", "TTFT, ms", halves, may_be_log=True),
        time_panel("p99 TTFT by arrival", "TTFT, ms", tails, may_be_log=True),
        time_panel("Requests waiting", "requests", depths, is_stepped=True),
        cdf_panel("Distribution of TTFT", "TTFT, ms", ttfts),
    ]
    if any(run.late.any() for run in runs):
        panels.append(time_panel("Deadlines missed so far", "requests", late, is_stepped=True))
    return panels


def _ttft_ms(run: Run, edges: npt.NDArray[np.float64], percent: int) -> list[float]:
    """A percentile of the time to the first token by when requests arrived; not a number where none did."""
    seen = np.isfinite(run.first_s)
    places = np.digitize(run.arrived_s[seen], edges) - 1
    waits_ms = (run.first_s - run.arrived_s)[seen] * 1000
    groups = [waits_ms[places == place] for place in range(len(edges) - 1)]
    return [float(np.percentile(group, percent)) if len(group) else float("nan") for group in groups]
