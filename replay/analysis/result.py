"""The result of a run as typed figures: latencies with percentiles, rates, verdicts on targets, and each instance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from blis_sim.engine.sequence import Outcome
from blis_sim.options.addition import sequential_sum
from replay.analysis.clusters import (
    columns_of,
    disaggregation_of,
    engine_names,
    hit_rate,
    totals_of,
    without_prefill_requests,
)
from replay.analysis.steady import Overload, Steadiness, SteadyState, steadiness, steady_state
from replay.report_options import LEAST_ATTAINMENT
from replay.simulation.record import NO_OUTCOME, Ints, Pool, Record, pool_of, pool_of_known
from replay.simulation.simulate import Simulated
from traces import SloTargets
from traces.goodput import rate
from traces.load import Load, load_of

if TYPE_CHECKING:
    from traces.goodput import Goodput

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The distribution of a latency over its sample, in milliseconds; 0 where the sample is empty."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Numbers of requests by outcome."""

    arrived: int
    completed: int
    waiting: int
    """Requests in a wait queue at the end of the run."""
    running: int
    length_capped: int
    """Completed requests that were cut at the end of the context."""
    timed_out: int
    dropped: int
    """Requests that no instance could ever serve."""
    rejected: int
    """Requests that a cluster or its gateway turned away."""
    failed: int
    """Requests whose instance was killed."""
    evicted: int
    """Requests that an instance gave up for others."""
    on_the_way: int
    """Requests that were at no instance at the end of the run: at the gateway, or being routed or transferred."""


def load_of_run(record: Record) -> Load:
    """Return the load of a run."""
    return load_of(_offered_per_s(record), record.input_tokens, record.planned_output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceResult:
    """The figures of one instance of a cluster."""

    name: str
    role: str
    """`prefill`, `decode` or `both` with separate pools, else empty."""
    completed: int
    waiting: int
    running: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft: Latency
    itl: Latency
    e2e: Latency
    busy_fraction: float
    """The share of the steady part in which a step was under way, of the whole run without one."""
    preemptions: int
    cache_hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAttainment:
    """The judgement of one SLO class by its targets."""

    slo_class: str
    targets: SloTargets
    count: int
    attainment: float
    """The share of its requests that met all targets."""
    attainment_by_target: Mapping[str, float]
    """The share of the answered requests that met each target: `ttft`, `itl` (mean per request), `e2e`."""
    least_attainment: float
    """The share from which the targets count as met."""

    @property
    def is_met(self) -> bool:
        """Whether enough requests met all targets; true without requests."""
        return not self.count or self.attainment >= self.least_attainment


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The figures of a simulated run."""

    requests: RequestCounts
    duration_s: float
    """Instant of the last event."""
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    """Completed requests over the whole run, as are the tokens."""
    output_tokens_per_s: float
    offered_per_s: float
    """Requests that arrive, from the first to the last."""
    steady: SteadyState | None
    """None where the run is too short for it."""
    overload: Overload | None
    """None where the number of requests in the system does not grow beyond chance."""
    is_steady: bool | None
    """Whether the run is long enough to know its steady state; None where nothing completes in a run that is."""
    num_requests_enough: int | None
    """Requests with which a longer run of the load was steady, where the run is too short."""
    load: Load
    ttft: Latency
    itl: Latency
    """All gaps between tokens."""
    mean_itl_per_request: Latency
    """Each request's mean gap, which vLLM calls TPOT."""
    e2e: Latency
    scheduling_delay: Latency
    preemptions: int
    cache_hit_rate: float
    goodput_per_s: float | None
    """Requests within their targets; None without targets."""
    attainment: float | None
    verdicts: Sequence[ClassAttainment]
    instances: Sequence[InstanceResult]
    """The instances of a cluster; empty for a single one."""
    custom_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of other packages by name."""

    @property
    def meets_targets(self) -> bool | None:
        """Whether all classes with targets met them; None where no request has targets."""
        judged = [each.is_met for each in self.verdicts if each.count]
        return all(judged) if judged else None


def result_of(
    simulated: Simulated,
    targets: Mapping[str, SloTargets],
    goodput: "Goodput | None" = None,
    least_attainment: float = LEAST_ATTAINMENT,
    judged: Steadiness | None = None,
) -> RunResult:
    """Return the figures of a finished run. `goodput` is the one for `targets`; `judged` is by longer runs, if any."""
    simulation, record = simulated.simulation, simulated.requests
    engines = simulation.instances
    totals = without_prefill_requests(totals_of(engines), simulation)
    columns = columns_of(simulated)
    completed = int(columns.is_completed.sum())
    duration_s = simulation.clock / 1e6
    judged, steady = judged or steadiness(record), steady_state(record)
    numbers = range(len(engines)) if len(engines) > 1 else ()
    return RunResult(
        requests=RequestCounts(
            arrived=len(record),
            completed=completed,
            waiting=totals.num_waiting,
            running=totals.num_running,
            length_capped=totals.ended[Outcome.LENGTH_CAPPED],
            timed_out=totals.ended[Outcome.TIMED_OUT],
            dropped=totals.ended[Outcome.DROPPED],
            rejected=record.count(Outcome.REJECTED),
            failed=record.count(Outcome.FAILED),
            evicted=record.count(Outcome.EVICTED),
            on_the_way=max(0, int(record.has_outcome(NO_OUTCOME).sum()) - totals.num_waiting - totals.num_running),
        ),
        duration_s=duration_s,
        input_tokens=totals.input_tokens,
        output_tokens=totals.output_tokens,
        requests_per_s=rate(completed, duration_s),
        output_tokens_per_s=rate(totals.output_tokens if completed else 0, duration_s),
        offered_per_s=_offered_per_s(record),
        steady=steady,
        overload=judged.overload,
        is_steady=judged.is_steady,
        num_requests_enough=judged.num_requests_enough,
        load=load_of_run(record),
        ttft=_known_latency(columns.ttft_us),
        itl=latency_of(record.tokens.gaps()),
        mean_itl_per_request=_mean_itls(record),
        e2e=_known_latency(columns.e2e_us),
        scheduling_delay=_known_latency(columns.scheduling_delay_us),
        preemptions=totals.num_preemptions,
        cache_hit_rate=sequential_sum(map(hit_rate, engines)) / len(engines) if engines else 0.0,
        goodput_per_s=None if goodput is None else goodput.per_s,
        attainment=None if goodput is None else goodput.share,
        verdicts=tuple(verdicts_of(targets, goodput, least_attainment)),
        instances=tuple(_instance_result(simulated, number, steady) for number in numbers),
    )


def verdicts_of(
    targets: Mapping[str, SloTargets], goodput: "Goodput | None", least_attainment: float
) -> Iterator[ClassAttainment]:
    """Yield the judgement of each class with targets."""
    for name, of_class in ({} if goodput is None else goodput.classes).items():
        yield ClassAttainment(
            slo_class=name,
            targets=targets[name],
            count=of_class.count,
            attainment=of_class.attained.share,
            attainment_by_target=of_class.attained.by_limit,
            least_attainment=least_attainment,
        )


def latency_of(pool: Pool) -> Latency:
    """Return the figures of a sample."""
    return Latency(
        count=len(pool),
        mean_ms=pool.mean_ms(),
        p50_ms=pool.percentile_ms(50),
        p90_ms=pool.percentile_ms(90),
        p95_ms=pool.percentile_ms(95),
        p99_ms=pool.percentile_ms(99),
    )


def _instance_result(simulated: Simulated, number: int, steady: SteadyState | None) -> InstanceResult:
    engine = simulated.simulation.instances[number]
    totals, columns = totals_of([engine]), columns_of(simulated, number)
    completed = int(columns.is_completed.sum())
    duration_s, run_s = engine.clock / 1e6, simulated.simulation.clock / 1e6
    since_s, until_s = (0.0, run_s) if steady is None else (steady.start_s, steady.end_s)
    disaggregation = disaggregation_of(simulated.simulation)
    roles = [] if disaggregation is None else disaggregation.engine_roles
    return InstanceResult(
        name=engine_names(simulated.simulation)[number],
        role=(roles[number] or "") if number < len(roles) else "",
        completed=completed,
        waiting=totals.num_waiting,
        running=totals.num_running,
        requests_per_s=rate(completed, duration_s),
        output_tokens_per_s=rate(totals.output_tokens if completed else 0, duration_s),
        ttft=_known_latency(columns.ttft_us),
        itl=latency_of(simulated.requests.tokens.gaps(number)),
        e2e=_known_latency(columns.e2e_us),
        busy_fraction=_busy_fraction(simulated.requests, number, since_s, until_s),
        preemptions=totals.num_preemptions,
        cache_hit_rate=hit_rate(engine),
    )


def _offered_per_s(record: Record) -> float:
    arrived_at = record.arrived_at
    return rate(len(record) - 1, float(arrived_at.max() - arrived_at.min()) / 1e6) if len(record) else 0.0


def _busy_fraction(record: Record, instance: int, since_s: float, until_s: float) -> float:
    """Return for which share of a stretch a step was under way."""
    if until_s <= since_s:
        return 0.0
    busy_us = record.tokens.busy_us(instance, round(since_s * 1e6), round(until_s * 1e6))
    return min(1.0, busy_us / 1e6 / (until_s - since_s))


def _mean_itls(record: Record) -> Latency:
    has_gaps = record.is_completed & (record.output_tokens > 1)
    return latency_of(pool_of(np.rint(record.itl_mean_us[has_gaps]).astype(np.int64)))


def _known_latency(column_us: Ints) -> Latency:
    return latency_of(pool_of_known(column_us))


def mean_result(results: Sequence[Result]) -> Result:
    """Return the mean of the results of runs that differ in chance alone; counts are rounded, words are the first's."""
    return _mean_result(results)  # type: ignore[no-any-return]


def _mean_result(values: Sequence[Any]) -> Any:
    first = values[0]
    if is_dataclass(first) and not isinstance(first, type):
        if any(each is None for each in values):
            return None
        names = [each.name for each in fields(first)]
        return type(first)(**{name: _mean_result([getattr(value, name) for value in values]) for name in names})
    if isinstance(first, tuple):
        return tuple(_mean_result(each) for each in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {
            key: _mean_result([value[key] for value in values]) for key in first if all(key in each for each in values)
        }
    if isinstance(first, bool):
        return sum(values) * 2 > len(values)
    if isinstance(first, int | float):
        mean = sequential_sum(values) / len(values)
        return round(mean) if isinstance(first, int) else mean
    return first
