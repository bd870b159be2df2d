"""One calibration without files: from a trace and results of its simulation, or a second recording, to grades."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.options.addition import sequential_sum
from calibrate.compare import (
    OK_STATUSES,
    RUN_TO_RUN,
    CalibrateError,
    Comparison,
    Floats,
    Latencies,
    Network,
    Pairing,
    compare,
    compare_compat,
    latencies,
    mape,
    pair,
    pair_compat,
)
from calibrate.steps import StepErrors
from traces import ResultRow, SloTargets, Trace, TraceHeader, TraceRow
from traces.client_cap import ClientCap, client_cap_of
from traces.goodput import Attainment, Bools, attained, attainment, limits_us, members_of, share
from traces.steps import StepTotals
from traces.text_file import read_json

# Mean time between tokens of each request, from the chunk times of the recording and from the simulation.
#
# Without chunk times, the times of the first and the last chunk, which every recording has, are used.
#
# A stream holds more chunks than tokens: chat begins with a chunk that only names the role, and ends with one that
# only holds the usage counts. Neither is a token, and counting their gaps makes tokens look faster than they were.

SAME_INSTANT_SHARE = 0.25
"""Share of the mean gap below which two chunks count as sent together."""
MAX_CHUNKS_WITHOUT_TOKEN = 3
"""Role, finish reason and usage. A stream with more is of unknown make and left as it is."""


@dataclass(frozen=True, slots=True)
class Itl:
    """Mean time between tokens per pair in microseconds, nan where there is none.

    `num_without_gaps` counts pairs whose chunks gave none though there were enough of them.
    """

    real_us: Floats
    sim_us: Floats
    num_without_gaps: int

    def both(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which pairs have a time between tokens on both sides."""
        return ~(np.isnan(self.real_us) | np.isnan(self.sim_us))


def itl(pairing: Pairing, chunks: Mapping[int, Sequence[int]]) -> Itl:
    """Times between tokens of each pair, chunks without a token left out; without any chunks, `itl_from_ends_us`.

    The simulated side is its mean inter-token latency, else the time from first to last token spread over the gaps.
    """
    if chunks:
        real = [
            real_itl_us(chunks.get(row.request_id, ()), row.output_tokens, first_token_us(row)) for row in pairing.rows
        ]
    else:
        real = [itl_from_ends_us(row) for row in pairing.rows]
    enough = [len(chunks.get(row.request_id, ())) >= 2 and row.output_tokens != 1 for row in pairing.rows]
    num_without_gaps = sum(1 for has, value in zip(enough, real, strict=True) if has and np.isnan(value))
    return Itl(
        np.array(real, np.float64),
        np.array([sim_itl_us(result) for result in pairing.results], np.float64),
        num_without_gaps,
    )


def itl_compat(pairing: Pairing, chunks: Mapping[int, Sequence[int]]) -> Itl:
    """Compute ITL as the original does: gaps between all chunks, role and usage too; simulated from E2E and TTFT, 0 for
    one token."""
    real = []
    num_without_gaps = 0
    for row in pairing.rows:
        times = chunks.get(row.request_id, ())
        gaps = [later - earlier for earlier, later in pairwise(times) if later >= earlier]
        num_without_gaps += len(times) >= 2 and not gaps
        real.append(sequential_sum(gaps) / len(gaps) if gaps else np.nan)
    sim = [
        (result.e2e_us - result.ttft_us) / (result.output_tokens - 1) if result.output_tokens > 1 else 0.0
        for result in pairing.results
    ]
    return Itl(np.array(real, np.float64), np.array(sim, np.float64), num_without_gaps)


def first_token_us(row: TraceRow) -> int:
    """When the first token of a recorded reply came; 0 for a simulated row.

    Each token time of a simulation is of a token. The first of them may be before the first chunk, which waits until
    tokens of other requests have been sent.
    """
    return row.first_chunk_time_us if row.num_chunks else 0


def content_chunks(chunks: Sequence[int], output_tokens: int, first_token_us: int = 0) -> tuple[int, int]:
    """The places of the first and the last chunk that hold a token.

    Where `first_token_us` is behind the first chunk, the first token is there. Else, how many chunks hold none follows
    from the counts. Two or three are the role before and usage (after a finish reason) behind. A single one is the role
    if it came together with the next chunk, closer than its neighbours and the last two did. Else it is the usage.
    """
    last = len(chunks) - 1
    if chunks and chunks[0] < first_token_us <= chunks[last]:
        first = next(place for place, at in enumerate(chunks) if at >= first_token_us)
        num_behind = last + 1 - first - output_tokens if output_tokens else 0
        return first, last - num_behind if 0 <= num_behind < MAX_CHUNKS_WITHOUT_TOKEN else last
    num_extra = len(chunks) - output_tokens if output_tokens else 0
    if last < 2 or not 1 <= num_extra <= MAX_CHUNKS_WITHOUT_TOKEN:
        return 0, last
    if num_extra == 1:
        hair_us = SAME_INSTANT_SHARE * (chunks[last] - chunks[0]) / last
        first_gap_us, next_gap_us = chunks[1] - chunks[0], chunks[2] - chunks[1]
        alone = 2 * first_gap_us < next_gap_us and first_gap_us < chunks[last] - chunks[last - 1]
        return (1, last) if first_gap_us <= hair_us and alone else (0, last - 1)
    return 1, last - (num_extra - 1)


def real_itl_us(chunks: Sequence[int], output_tokens: int, first_token_us: int = 0) -> float:
    """Mean time between tokens in microseconds, nan if there is none or the clock went backwards.

    The time from the first to the last token is spread over the tokens the server counted. So chunks with several
    tokens count as several. Without a count it is spread over the chunks.
    """
    first, last = content_chunks(chunks, output_tokens, first_token_us)
    num_gaps = (output_tokens or last - first + 1) - 1
    if last <= first or num_gaps < 1 or chunks[last] < chunks[first]:
        return np.nan
    return (chunks[last] - chunks[first]) / num_gaps


def itl_from_ends_us(row: TraceRow) -> float:
    """The time from the first to the last chunk of a recorded request, spread over the gaps between its tokens.

    Nan for an output of one token, and for one that came in one piece.
    """
    spread_us = row.last_chunk_time_us - row.first_chunk_time_us
    return spread_us / (row.output_tokens - 1) if row.output_tokens > 1 and spread_us > 0 else np.nan


def sim_itl_us(result: ResultRow) -> float:
    """Mean time between tokens in microseconds, nan for an output of one token."""
    if result.itl_mean_us is not None:
        return result.itl_mean_us
    return (result.e2e_us - result.ttft_us) / (result.output_tokens - 1) if result.output_tokens > 1 else np.nan


# How many requests met the latency limits of their class, recorded and simulated.

_COUNTED_STATUSES_COMPAT = frozenset({"ok", "error", "timeout"})


@dataclass(frozen=True, slots=True)
class ClassGoodput:
    """One class of requests on both sides."""

    count: int
    real: Attainment
    sim: Attainment


@dataclass(frozen=True, slots=True)
class Goodput:
    """All classes with limits. `itl_skipped`: an ITL limit could not be checked because token times are missing."""

    targets: dict[str, SloTargets]
    classes: dict[str, ClassGoodput]
    itl_skipped: bool


def goodput(pairing: Pairing, times: Latencies, itl: Itl, targets: Mapping[str, SloTargets]) -> Goodput:
    """Attainment of each class's limits over its pairs; each limit's share is over the pairs it was checked for.

    An ITL limit is checked only for pairs with token times on both sides, so that recording and simulation are held to
    the same limits. Rates divide by the time from the first sending to the last chunk.
    """
    both = itl.both()
    real = _by_limit(times.real_ttft_us, times.real_e2e_us, np.where(both, itl.real_us, np.nan))
    sim = _by_limit(times.sim_ttft_us, times.sim_e2e_us, np.where(both, itl.sim_us, np.nan))
    duration_s = recorded_duration_s(pairing)
    classes = {}
    skipped = False
    for name, of_class in sorted(targets.items()):
        members = members_of(name, (row.slo_class for row in pairing.rows))
        limits = limits_us(of_class)
        skipped |= "itl" in limits and bool((members & ~both).any())
        classes[name] = ClassGoodput(
            count=int(members.sum()),
            real=attainment(real, limits, members, duration_s),
            sim=attainment(sim, limits, members, duration_s),
        )
    return Goodput(dict(sorted(targets.items())), classes, skipped)


def goodput_compat(pairing: Pairing, times: Latencies, itl: Itl, targets: Mapping[str, SloTargets]) -> Goodput:
    """Compute goodput as the original does: limits in the order TTFT, E2E, ITL, each checked only for requests that met
    those before.

    A request without token times misses its ITL limit, and failed requests miss all of the recorded side. The simulated
    ITL is the one in the results.
    """
    sim_itl_us = np.array([result.itl_mean_us or np.nan for result in pairing.results], dtype=np.float64)
    real = _by_limit(times.real_ttft_us, times.real_e2e_us, itl.real_us)
    sim = _by_limit(times.sim_ttft_us, times.sim_e2e_us, sim_itl_us)
    counted = np.array([row.status in _COUNTED_STATUSES_COMPAT for row in pairing.rows], dtype=np.bool_)
    answered = np.array([row.status == "ok" for row in pairing.rows], dtype=np.bool_)
    missing = np.isnan(itl.real_us) | np.isnan(sim_itl_us)
    duration_s = recorded_duration_s(pairing)
    classes = {}
    skipped = False
    for name, of_class in sorted(targets.items()):
        members = members_of(name, (row.slo_class for row in pairing.rows)) & counted
        limits = limits_us(of_class)
        skipped |= "itl" in limits and bool((members & missing).any())
        num_members = int(members.sum())
        classes[name] = ClassGoodput(
            count=num_members,
            real=_attainment_in_order(real, limits, members & answered, num_members, duration_s),
            sim=_attainment_in_order(sim, limits, members, num_members, duration_s),
        )
    return Goodput(dict(sorted(targets.items())), classes, skipped)


def recorded_duration_s(pairing: Pairing) -> float:
    """Seconds from the first sending of a matched row to the last chunk of one."""
    first_us = min(row.send_time_us for row in pairing.rows)
    return (max(row.last_chunk_time_us for row in pairing.rows) - first_us) / 1e6


def _by_limit(ttft_us: Floats, e2e_us: Floats, itl_us: Floats) -> dict[str, Floats]:
    return {"ttft": ttft_us, "e2e": e2e_us, "itl": itl_us}


def _attainment_in_order(
    values: Mapping[str, Floats], limits: Mapping[str, float], good: Bools, num_members: int, duration_s: float
) -> Attainment:
    by_limit = {}
    for name, limit in limits.items():
        num_checked = int(good.sum())
        good = good & (values[name] <= limit)
        by_limit[name] = share(int(good.sum()), num_checked)
    return attained(int(good.sum()), num_members, by_limit, duration_s)


# Figures of JSON files of other commands: hit rates of the prefix cache, and aggregates against a reference.


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """The object of a file."""

    path: Path
    values: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the object has a value under a key."""
        return self.values.get(key) is not None

    def number(self, key: str) -> float:
        """The number under a key, `a.b` for the key b of the object a. Raises CalibrateError."""
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            found = "but the key is missing" if value is None else f"got {value!r}"
            raise CalibrateError(f"{self.path} key {key}: expected a number, {found}")
        return value


def read_metrics(path: Path) -> MetricsFile:
    """Read a JSON object. Raises TraceError when it is no JSON, CalibrateError when it is no object."""
    values = read_json(path)
    if not isinstance(values, Mapping):
        raise CalibrateError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return MetricsFile(path, values)


@dataclass(frozen=True, slots=True)
class HitRate:
    """Both rates as fractions, their distance and its limit in percentage points, and where the real one is from."""

    real: float
    sim: float
    tolerance_pp: float
    source: str

    @property
    def error_pp(self) -> float:
        """Distance in percentage points."""
        return abs(self.real - self.sim) * 100

    @property
    def within(self) -> bool:
        """Whether the distance is within its limit."""
        return self.error_pp <= self.tolerance_pp + 1e-9


def hit_rate(header: TraceHeader, metrics: MetricsFile, tolerance_pp: float) -> HitRate | str:
    """The two rates, or a sentence saying which side has none. Raises CalibrateError for what is no number."""
    observed = header.observed_kv_metrics or {}
    if "hit_rate" not in observed:
        return "the trace header holds no observed_kv_metrics.hit_rate, so cache hit rates are not compared"
    if not metrics.has("cache_hit_rate"):
        return f"{metrics.path} holds no cache_hit_rate, so cache hit rates are not compared"
    return HitRate(observed["hit_rate"], metrics.number("cache_hit_rate"), tolerance_pp, observed.get("source", ""))


_METRICS = (("ttft", "ttft"), ("throughput", "output_throughput"))
"""Name of a metric, and its key in the reference file."""


@dataclass(frozen=True, slots=True)
class AdapterMetric:
    """One metric. `delta_mape` is how much the adapters change the error; None without a blind run."""

    name: str
    reference: float
    simulated: float
    error: float
    within: bool
    delta_mape: float | None


@dataclass(frozen=True, slots=True)
class AdapterComparison:
    """All metrics of a model, errors as fractions of the reference."""

    model: str
    threshold: float
    metrics: list[AdapterMetric]


def compare_adapter(
    reference: MetricsFile, aware: MetricsFile, blind: MetricsFile | None, threshold: float
) -> AdapterComparison:
    """Compare mean TTFT and output throughput of a simulation with a reference file. Raises CalibrateError."""
    metrics = []
    for name, key in _METRICS:
        reference_value = _positive(reference, f"adapter_aware.{key}")
        simulated = _simulated(aware, name)
        error = abs(simulated - reference_value) / reference_value
        delta = None
        if blind is not None:
            reference_change = reference_value / _positive(reference, f"adapter_blind.{key}")
            change = simulated / _above_zero(blind, name, _simulated(blind, name))
            delta = abs(change - reference_change) / reference_change
        metrics.append(AdapterMetric(name, reference_value, simulated, error, error <= threshold, delta))
    return AdapterComparison(str(reference.values.get("model", "")), threshold, metrics)


def _simulated(metrics: MetricsFile, name: str) -> float:
    if name == "ttft":
        return metrics.number("ttft_mean_ms")
    return metrics.number("total_output_tokens") / _positive(metrics, "vllm_estimated_duration_s")


def _positive(metrics: MetricsFile, key: str) -> float:
    return _above_zero(metrics, key, metrics.number(key))


def _above_zero(metrics: MetricsFile, key: str, value: float) -> float:
    if value <= 0:
        raise CalibrateError(f"{metrics.path} key {key}: expected a number above 0, got {value:g}")
    return value


# One calibration without files: from a trace and the results of its simulation to grades and words.


@dataclass(frozen=True, slots=True)
class Throughput:
    """One side: how long it took, and rates over that time."""

    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float


def real_throughput(pairing: Pairing) -> Throughput:
    """From the first sending to the last chunk."""
    return _throughput(recorded_duration_s(pairing), len(pairing.rows), sum(row.output_tokens for row in pairing.rows))


def sim_throughput(pairing: Pairing, times: Latencies) -> Throughput:
    """From the first sending to the last simulated end."""
    sent_us = sim_sent_us(pairing)
    ended_us = (sent_us - sent_us.min()) + times.sim_e2e_us
    output_tokens = sum(result.output_tokens for result in pairing.results)
    return _throughput(float(ended_us.max()) / 1e6, len(pairing.results), output_tokens)


def sim_sent_us(pairing: Pairing) -> Floats:
    """Return when each request was sent in the simulation, on its own clock; if any result lacks that, when they really
    were."""
    simulated = [result.sent_at_us for result in pairing.results]
    recorded = [row.send_time_us for row in pairing.rows]
    return np.array(recorded if None in simulated else simulated, dtype=np.float64)


def _throughput(duration_s: float, num_requests: int, output_tokens: int) -> Throughput:
    if duration_s <= 0:
        return Throughput(0.0, 0.0, 0.0)
    return Throughput(duration_s, num_requests / duration_s, output_tokens / duration_s)


Chunks = Mapping[int, Sequence[int]]
SAME_US = 1000.0
"""A simulation that sends each request this close to when the recording did has taken its send times."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The figures to compare, and how they are graded."""

    pair: Callable[[Trace, Sequence[ResultRow], int], Pairing]
    itl: Callable[[Pairing, Chunks], Itl]
    compare: Callable[..., Comparison]
    goodput: Callable[[Pairing, Latencies, Itl, Mapping[str, SloTargets]], Goodput]


PLAIN = Rules(pair, itl, compare, goodput)
COMPAT = Rules(pair_compat, itl_compat, compare_compat, goodput_compat)


@dataclass(frozen=True, slots=True)
class Group:
    """Prediction errors of the requests of one class or model, as fractions."""

    count: int
    ttft_mape: float
    e2e_mape: float


@dataclass(frozen=True, slots=True)
class Values:
    """One metric of every request that has it on both sides, in microseconds, with the rows of the recording."""

    real_us: Floats
    sim_us: Floats
    rows: list[TraceRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Results of a calibration. `metrics` has the keys ttft, e2e and, with token times, itl; `values` has
    what they were computed from."""

    pairing: Pairing
    network: Network
    metrics: dict[str, Comparison]
    values: dict[str, Values]
    num_itl_dropped: int
    num_without_token_times: int
    real_throughput: Throughput
    sim_throughput: Throughput
    by_slo_class: dict[str, Group]
    by_model: dict[str, Group]
    by_tenant: dict[str, Group]
    goodput: Goodput | None
    hit_rate: HitRate | None
    ttft_threshold: float
    is_recording: bool
    """Whether the other side is a second recording, of which no coefficient is to blame."""
    ignored_cap: ClientCap | None
    """The cap that the client of the recording had, if the simulation nevertheless sent when that client did."""
    steps: Sequence[StepErrors] = ()
    """How well recorded steps are predicted, by kind; empty where none were recorded."""
    step_totals: tuple[StepTotals, StepTotals] | None = None
    """Steps and tokens by the metrics of the server, and of the simulation; None without readings of metrics."""

    @property
    def other(self) -> str:
        """Name of the other side."""
        return "second" if self.is_recording else "simulated"


def calibrate(
    trace: Trace,
    results: Sequence[ResultRow],
    chunks: Chunks,
    rules: Rules,
    *,
    warm_up_requests: int,
    network: Network,
    targets: Mapping[str, SloTargets],
    hit_rate: HitRate | None,
    ttft_threshold: float,
    is_recording: bool = False,
) -> Calibration:
    """Compare a recording with its simulation, or with results that are a second recording's.

    Raises CalibrateError when no pair can be compared.
    """
    pairing = rules.pair(trace, results, warm_up_requests)
    _check_pairs(trace, pairing)
    times = latencies(pairing, network)
    itls = rules.itl(pairing, chunks)
    comparable = np.array(pairing.comparable, dtype=np.bool_)
    values = {
        "ttft": _values(pairing, comparable, times.real_ttft_us, times.sim_ttft_us),
        "e2e": _values(pairing, comparable, times.real_e2e_us, times.sim_e2e_us),
    }
    both = itls.both()
    if both.any():
        values["itl"] = _values(pairing, both, itls.real_us, itls.sim_us)
    return Calibration(
        pairing=pairing,
        network=network,
        metrics={name: rules.compare(each.real_us, each.sim_us) for name, each in values.items()},
        values=values,
        num_itl_dropped=itls.num_without_gaps,
        num_without_token_times=sum(row.request_id not in chunks for row in pairing.rows),
        real_throughput=real_throughput(pairing),
        sim_throughput=sim_throughput(pairing, times),
        by_slo_class=_groups([row.slo_class for row in pairing.rows], comparable, times),
        by_model=_groups([row.model for row in pairing.rows], comparable, times),
        by_tenant=_groups([row.tenant_id for row in pairing.rows], comparable, times),
        goodput=rules.goodput(pairing, times, itls, targets) if targets else None,
        hit_rate=hit_rate,
        ttft_threshold=ttft_threshold,
        is_recording=is_recording,
        ignored_cap=None if is_recording or not _sent_as_recorded(pairing) else client_cap_of(trace.rows),
    )


def _sent_as_recorded(pairing: Pairing) -> bool:
    recorded = np.array([row.send_time_us for row in pairing.rows], np.float64)
    return bool(np.ptp(sim_sent_us(pairing) - recorded) <= SAME_US)


def _values(pairing: Pairing, which: npt.NDArray[np.bool_], real_us: Floats, sim_us: Floats) -> Values:
    rows = [row for row, is_one in zip(pairing.rows, which, strict=True) if is_one]
    return Values(real_us[which], sim_us[which], rows)


def _check_pairs(trace: Trace, pairing: Pairing) -> None:
    if not trace.rows:
        raise CalibrateError(f"{trace.data_path} has no rows, so there is nothing to compare")
    if any(pairing.comparable):
        return
    # Pairs without anything to compare exist under the compat rules only; they count as unmatched, too.
    fates = {
        "are warm-up": pairing.num_warm_up,
        "failed": pairing.num_failed,
        "repeat an earlier request_id": pairing.num_repeated,
        "have no usable times": pairing.num_without_times + pairing.num_matched,
        "have a request_id the results lack": pairing.num_unmatched_rows - pairing.num_matched,
    }
    counts = ", ".join(f"{count} {fate}" for fate, count in fates.items() if count > 0)
    raise CalibrateError(f"no row of {trace.data_path} can be compared: of {len(trace.rows)}, {counts}")


def _groups(names: list[str], comparable: np.ndarray, times: Latencies) -> dict[str, Group]:
    groups = {}
    for name in sorted({name for name in names if name}):
        members = comparable & np.array([each == name for each in names], dtype=np.bool_)
        if members.any():
            groups[name] = Group(
                count=int(members.sum()),
                ttft_mape=mape(times.real_ttft_us[members], times.sim_ttft_us[members]),
                e2e_mape=mape(times.real_e2e_us[members], times.sim_e2e_us[members]),
            )
    return groups


NAMES = {"ttft": "TTFT", "e2e": "E2E", "itl": "ITL"}
SMALL_BIAS = 0.02
"""Mean errors within this fraction are not worth a coefficient."""
MIN_TREND_R = 0.2
"""Correlation of an error with a cause from which on the cause is named."""


def summary_sentences(found: Calibration, noise_floor: Mapping[str, Comparison] | None = None) -> list[str]:
    """One sentence or more per metric, the hint at coefficients, and how much of the error is chance."""
    summary = _difference if found.is_recording else _summary
    sentences = [summary(name, found.metrics[name]) for name in NAMES if name in found.metrics]
    if found.steps:
        comparison = found.steps[0].comparison
        error = comparison.sim.mean / comparison.real.mean - 1
        bias = f"{abs(error):.1%} too {'slow' if error > 0 else 'fast'}" if abs(error) >= 0.001 else "unbiased"
        sentences.append(f"Steps of the engine are timed within {comparison.mape:.2%} each and {bias} on average.")
    if found.ignored_cap is not None:
        sentences.append(f"{ignored_cap(found.ignored_cap)}.")
    elif not found.is_recording:
        sentences.extend(_hints(found))
    if noise_floor:
        sentences.extend(_against_noise(found, noise_floor))
    elif not found.is_recording:
        sentences.append(chance_of_runs(found.metrics))
    return sentences


def chance_of_runs(names: Iterable[str]) -> str:
    """Return a sentence on how much one run of a server differs from the next, for these metrics."""
    known = [f"{RUN_TO_RUN[name]:.1%} in {NAMES[name]}" for name in NAMES if name in names and name in RUN_TO_RUN]
    return f"Two runs of one real server differ by about {', '.join(known)}; --second-recording measures this server's."


def ignored_cap(cap: ClientCap) -> str:
    """Return why a simulation that sent at the recorded times means little here, and how to make one that does not."""
    return (
        f"{cap}; the simulation sent at those times, one of blis replay --reissue --max-concurrency "
        f"{cap.max_concurrency} sends as that client did"
    )


def _difference(name: str, comparison: Comparison) -> str:
    much = comparison.sim.mean / comparison.real.mean - 1 if comparison.real.mean else 0.0
    side = "slower" if much > 0 else "faster"
    bias = f"it is {abs(much):.1%} {side} on average" if abs(much) >= 0.001 else "it is as fast on average"
    return f"The second recording has {NAMES[name]} within {comparison.mape:.1%} per request, and {bias}."


def _summary(name: str, comparison: Comparison) -> str:
    error = comparison.sim.mean / comparison.real.mean - 1 if comparison.real.mean else 0.0
    side = "too slow" if error > 0 else "too fast"
    bias = f"on average {abs(error):.1%} {side}" if abs(error) >= 0.001 else "unbiased on average"
    return f"{NAMES[name]} is predicted within {comparison.mape:.1%} per request and {bias}."


def _hints(found: Calibration) -> list[str]:
    hints = []
    pace = "itl" if "itl" in found.values else "e2e"
    pace_bias = _bias(found.values[pace])
    if abs(pace_bias) >= SMALL_BIAS:
        hints.append(_pace_hint(found.values[pace], pace_bias, NAMES[pace]))
    ttft_bias = _bias(found.values["ttft"])
    if abs(ttft_bias) >= SMALL_BIAS:
        hints.append(_ttft_hint(found.values["ttft"], ttft_bias))
    return hints or ["No systematic error is large enough to blame a coefficient."]


def _pace_hint(values: Values, bias: float, name: str) -> str:
    errors_us = values.sim_us - values.real_us
    much = "much" if bias > 0 else "little"
    if _correlation(errors_us, in_flight(values)) * np.sign(bias) > MIN_TREND_R:
        return (
            f"The error of {name} grows with the number of requests in flight. Each decoding request, or its KV "
            f"cache, costs too {much} (coefficients request_us, decodes, kv), or prompts that interrupt it do "
            "(tokens, tiles)."
        )
    return (
        f"The error of {name} is about the same under any load: every step costs too {much} (coefficients weights and "
        "layer_us)."
    )


def _ttft_hint(values: Values, bias: float) -> str:
    errors_us = values.sim_us - values.real_us
    much = "much" if bias > 0 else "little"
    inputs = np.array([row.server_input_tokens or row.input_tokens for row in values.rows], np.float64)
    if _correlation(errors_us, inputs) * np.sign(bias) > MIN_TREND_R:
        return (
            f"The error of TTFT grows with the prompt: computing prompts costs too {much} (coefficients tokens, tiles "
            "and attention, and arrival_token_us outside of the engine)."
        )
    if _correlation(errors_us, in_flight(values)) * np.sign(bias) > MIN_TREND_R:
        return (
            f"The error of TTFT grows with the number of requests in flight: waiting costs too {much}. Look at the "
            "scheduling settings, at whether the client had a cap (--reissue), and at output_request_us."
        )
    return (
        f"The error of TTFT is about the same for all requests: what passes outside of steps is too {much} "
        "(coefficients arrival_us and output_us)."
    )


def _against_noise(found: Calibration, noise_floor: Mapping[str, Comparison]) -> list[str]:
    sentences = []
    for name, floor in noise_floor.items():
        if name not in found.metrics:
            continue
        mape = found.metrics[name].mape
        if mape <= floor.mape * 1.1:
            verdict = "no more than"
        else:
            verdict = f"{mape / floor.mape:.1f} times" if floor.mape else "more than"
        sentences.append(
            f"A second run of the real server predicts {NAMES[name]} within {floor.mape:.1%}; "
            f"the simulation's error is {verdict} that."
        )
    return sentences


def _bias(values: Values) -> float:
    real = float(values.real_us.mean())
    return float(values.sim_us.mean()) / real - 1 if real else 0.0


def in_flight(values: Values) -> Floats:
    """Return the number of requests in flight when each recorded request was sent, itself included."""
    sent = np.array([row.send_time_us for row in values.rows], np.float64)
    ended = np.array([row.last_chunk_time_us for row in values.rows], np.float64)
    started_before = np.searchsorted(np.sort(sent), sent, side="right")
    ended_before = np.searchsorted(np.sort(ended), sent, side="right")
    counts: Floats = (started_before - ended_before).astype(np.float64)
    return counts


def _correlation(one: Floats, other: Floats) -> float:
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


# A second recording in the place of a simulation: how well one run of the real server predicts another.
#
# No simulation can be expected to do better than that. Rows and their numbers are in the order of completion, which
# differs from run to run; what is the same is when each request was due.


def results_of_recording(trace: Trace, second: Trace, chunks: Chunks) -> list[ResultRow]:
    """The measurements of `second` as results for the requests of `trace` that were due at the same instants.

    Several due at one instant pair up in order of their prompts' lengths. `chunks` are the token times of `second`.
    Raises CalibrateError when no two belong together.
    """
    waiting: dict[int, list[TraceRow]] = defaultdict(list)
    for row in sorted(second.rows, key=_prompt_tokens, reverse=True):
        if row.status in OK_STATUSES and 0 < row.send_time_us <= row.first_chunk_time_us <= row.last_chunk_time_us:
            waiting[row.arrival_time_us].append(row)
    if not waiting:
        raise CalibrateError(f"no row of {second.data_path} can be compared: none was answered, with its times")
    results = []
    for row in sorted(trace.rows, key=_prompt_tokens):
        same = waiting.get(row.arrival_time_us)
        if same:
            results.append(_result(row.request_id, same.pop(), chunks))
    if not results:
        raise CalibrateError(
            f"{second.data_path} is no recording of the same workload as {trace.data_path}: "
            "no arrival_time_us is found in both"
        )
    return results


def _prompt_tokens(row: TraceRow) -> int:
    return row.server_input_tokens or row.input_tokens


def _result(request_id: int, row: TraceRow, chunks: Chunks) -> ResultRow:
    first_us, last_us = row.first_chunk_time_us, row.last_chunk_time_us
    itl_us = real_itl_us(chunks.get(row.request_id, ()), row.output_tokens, first_token_us(row))
    if math.isnan(itl_us):
        itl_us = itl_from_ends_us(row)
    return ResultRow(
        request_id=request_id,
        ttft_us=first_us - row.send_time_us,
        e2e_us=last_us - row.send_time_us,
        input_tokens=_prompt_tokens(row),
        output_tokens=row.output_tokens,
        slo_class=row.slo_class,
        model=row.model,
        itl_mean_us=None if math.isnan(itl_us) else itl_us,
        sent_at_us=row.send_time_us,
    )
