"""Rows of a recording paired with results of a simulation, and statistics of the differences of one metric."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.options import BlisError, OptionError
from traces import ResultRow, Trace, TraceHeader, TraceRow

# Rows of a recording and the results of a simulation they are compared with, both on the footing of one network.


class CalibrateError(BlisError):
    """Files that can be read, but have nothing in common or lack required values."""


OK_STATUSES = frozenset({"ok", ""})
"""Statuses of rows with a complete reply; some recorders write no status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Rows and results that belong together (`rows[i]` with `results[i]`), and how many were left out and why.

    `comparable[i]`: the pair has latencies to compare; by the plain rules, all pairs have.
    """

    rows: list[TraceRow]
    results: list[ResultRow]
    comparable: list[bool]
    num_warm_up: int
    num_failed: int
    num_without_times: int
    num_repeated: int
    num_unmatched_rows: int
    num_unmatched_results: int
    num_repeated_results: int

    @property
    def num_matched(self) -> int:
        """Pairs, with or without latencies to compare."""
        return len(self.rows)

    @property
    def num_token_mismatches(self) -> int:
        """Pairs in which recording and simulation count prompt or output tokens differently."""
        return sum(map(_tokens_differ, self.rows, self.results))

    @property
    def num_in_one_piece(self) -> int:
        """Pairs whose recorded time to the first token is that to the last."""
        return sum(map(is_single_chunk, self.rows))

    @property
    def num_requests(self) -> int:
        """Every row once: matched, excluded or unmatched."""
        excluded = self.num_warm_up + self.num_failed + self.num_without_times + self.num_repeated
        return self.num_matched + excluded + self.num_unmatched_rows


def pair(trace: Trace, results: Sequence[ResultRow], warm_up_requests: int) -> Pairing:
    """Pair the rows that can be compared with the results of the same request_id.

    Each row counts once: as warm-up, failed, repeated, without times, unmatched, or as one of a pair. A failed row has
    another status than ok, and an earlier row has the id of a repeated one. A row without times has no first chunk, or
    chunks before the request was sent. The last of repeated results counts.

    Warm-up is the first `warm_up_requests` of the run in the order they were sent, whatever their numbers. A recorder
    that leaves its warm-up out starts its numbers behind it. Warm-up requests that the header counts and that are gone
    already are not taken away a second time.
    """
    by_id = {result.request_id: result for result in results}
    warm_up = _first_sent(trace, warm_up_requests)
    num_failed = num_without_times = num_repeated = num_unmatched = 0
    matched: dict[int, TraceRow] = {}
    seen: set[int] = set()
    parts: list[ResultRow] = []
    for place, row in enumerate(trace.rows):
        if row.is_part:
            parts += [by_id[row.request_id]] if row.request_id in by_id else []
            continue
        others, parts = parts, []
        if place in warm_up:
            continue
        if row.status not in OK_STATUSES:
            num_failed += 1
        elif row.request_id in seen:
            num_repeated += 1
        elif not _has_times(row):
            num_without_times += 1
        elif row.request_id not in by_id:
            num_unmatched += 1
        else:
            matched[row.request_id] = row
            if others or _is_in_one_piece(row):
                by_id[row.request_id] = _as_seen(row, by_id[row.request_id], others)
        seen.add(row.request_id)
    return Pairing(
        rows=list(matched.values()),
        results=[by_id[request_id] for request_id in matched],
        comparable=[True] * len(matched),
        num_warm_up=len(warm_up),
        num_failed=num_failed,
        num_without_times=num_without_times,
        num_repeated=num_repeated,
        num_unmatched_rows=num_unmatched,
        num_unmatched_results=_num_without_row(by_id, trace),
        num_repeated_results=len(results) - len(by_id),
    )


def _as_seen(row: TraceRow, result: ResultRow, others: Sequence[ResultRow]) -> ResultRow:
    """Return a result as the client of its row sees it, with the results of the other parts of the request.

    The reply begins with the first token of any part and ends with the last one. All of a reply in one piece comes at
    its end.
    """
    last_us = max(each.e2e_us for each in (result, *others))
    first_us = last_us if _is_in_one_piece(row) else min(each.ttft_us for each in (result, *others))
    return result._replace(ttft_us=first_us, e2e_us=last_us)


def pair_compat(trace: Trace, results: Sequence[ResultRow], warm_up_requests: int) -> Pairing:
    """Pair as the original does: warm-up by id value, whatever the status, repeated rows as often as they occur.

    Rows whose chunks precede their sending stay matched without being compared and count as unmatched as well.
    """
    by_id = {result.request_id: result for result in results}
    measured = [row for row in trace.rows if row.request_id >= warm_up_requests]
    matched = [row for row in measured if row.request_id in by_id]
    comparable = [min(row.first_chunk_time_us, row.last_chunk_time_us) >= row.send_time_us for row in matched]
    return Pairing(
        rows=matched,
        results=[by_id[row.request_id] for row in matched],
        comparable=comparable,
        num_warm_up=len(trace.rows) - len(measured),
        num_failed=0,
        num_without_times=0,
        num_repeated=0,
        num_unmatched_rows=len(measured) - len(matched) + comparable.count(False),
        num_unmatched_results=_num_without_row(by_id, trace),
        num_repeated_results=len(results) - len(by_id),
    )


def _first_sent(trace: Trace, warm_up_requests: int) -> set[int]:
    """The places of the rows that are warm-up."""
    if not trace.rows or warm_up_requests <= 0:
        return set()
    left_out = trace.header.warm_up_requests
    already_gone = left_out if min(row.request_id for row in trace.rows) >= left_out else 0
    # Rows that were never sent have no send time; then only arrivals share one clock.
    all_sent = all(row.send_time_us for row in trace.rows)

    def sent(place: int) -> tuple[int, int]:
        row = trace.rows[place]
        return (row.send_time_us if all_sent else row.arrival_time_us, row.request_id)

    return set(sorted(range(len(trace.rows)), key=sent)[: max(0, warm_up_requests - already_gone)])


def _num_without_row(by_id: Mapping[int, ResultRow], trace: Trace) -> int:
    return len(by_id.keys() - {row.request_id for row in trace.rows})


def _has_times(row: TraceRow) -> bool:
    in_order = row.send_time_us <= row.first_chunk_time_us <= row.last_chunk_time_us
    return row.first_chunk_time_us != 0 and in_order


def is_single_chunk(row: TraceRow) -> bool:
    """Whether several tokens came at once, as without a stream, so that the time of the first is unknown."""
    return row.output_tokens > 1 and _is_in_one_piece(row)


def _is_in_one_piece(row: TraceRow) -> bool:
    """Whether the reply had one chunk, whose bytes may come over some time."""
    return row.num_chunks == 1 or row.first_chunk_time_us == row.last_chunk_time_us


def check_same_tokens(pairing: Pairing, trace: Trace, source: str) -> None:
    """Raise CalibrateError for the first result of `source` whose tokens cannot be those of its recorded request.

    A result without a number of tokens counts as alike. So does a prompt with or without the prefix of its group, or as
    the server counted it.
    """
    prefixes: dict[str, set[int]] = {}
    for row in trace.rows:
        prefixes.setdefault(row.prefix_group, set()).add(row.prefix_length)
    for row, result in zip(pairing.rows, pairing.results, strict=True):
        prompts = {row.server_input_tokens, row.input_tokens}
        prompts |= {prefix + row.input_tokens for prefix in prefixes[row.prefix_group]}
        if result.input_tokens and result.input_tokens not in prompts:
            raise _other_tokens(source, row, "input_tokens", result.input_tokens)
        if result.output_tokens and result.output_tokens != row.output_tokens:
            raise _other_tokens(source, row, "output_tokens", result.output_tokens)


def _other_tokens(source: str, row: TraceRow, key: str, found: int) -> CalibrateError:
    place, expected = f"{source} request_id {row.request_id} key {key}", getattr(row, key)
    return CalibrateError(
        f"{place}: expected {expected} as in the recording, got {found};"
        " simulate this very recording, with blis replay --results-path"
    )


def _tokens_differ(row: TraceRow, result: ResultRow) -> bool:
    input_tokens = row.server_input_tokens or row.input_tokens
    return input_tokens != result.input_tokens or row.output_tokens != result.output_tokens


Floats = npt.NDArray[np.float64]
BITS_PER_TOKEN = 4 * 8
"""A token is four bytes of text on average."""


@dataclass(frozen=True, slots=True)
class Network:
    """The way between client and server: round trip in microseconds, bandwidth in Mbit/s (0: no transfer delay)."""

    rtt_us: int = 0
    bandwidth_mbps: float = 0.0

    def transfer_us(self, tokens: Floats) -> Floats:
        """Time on the wire for so many tokens."""
        return tokens * BITS_PER_TOKEN / self.bandwidth_mbps if self.bandwidth_mbps > 0 else np.zeros_like(tokens)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Arrays with one entry per pair, in microseconds."""

    real_ttft_us: Floats
    sim_ttft_us: Floats
    real_e2e_us: Floats
    sim_e2e_us: Floats


def rtt_us_of(header: TraceHeader) -> int:
    """The round trip measured when recording, in whole microseconds; 0 if it was not."""
    return int((header.measured_rtt_ms or 0.0) * 1000)


def latencies(pairing: Pairing, network: Network) -> Latencies:
    """Recorded latencies, and simulated ones with the network added: round trip and prompt, for E2E output as well."""
    rows, results = pairing.rows, pairing.results
    up_us = network.rtt_us + network.transfer_us(_array([result.input_tokens for result in results]))
    down_us = network.transfer_us(_array([result.output_tokens for result in results]))
    return Latencies(
        real_ttft_us=_array([row.first_chunk_time_us - row.send_time_us for row in rows]),
        sim_ttft_us=_array([result.ttft_us for result in results]) + up_us,
        real_e2e_us=_array([row.last_chunk_time_us - row.send_time_us for row in rows]),
        sim_e2e_us=_array([result.e2e_us for result in results]) + up_us + down_us,
    )


def _array(values: list[int] | list[float]) -> Floats:
    return np.array(values, dtype=np.float64)


# Statistics of one metric: differences of distributions and of single requests, their confidence, and limits.

CONSTANT_SPREAD = 0.005
"""Standard deviation over mean up to which recorded values count as constant.

Two recordings of the same run differ by as much, so what is left of the spread is noise nothing can correlate with.
"""
GRADES = (("excellent", 0.10, 0.95), ("good", 0.20, 0.85), ("fair", 0.35, 0.70))
"""Grade, MAPE it stays below, r it stays above. What reaches none is poor."""
VARIED_SPREAD = GRADES[0][1]
"""Standard deviation over mean from which on r counts: values that vary less are predicted well by their mean."""
_DEVIATION_OF_MAPE = (math.pi / 2) ** 0.5
"""Standard deviation of normal errors over their mean absolute value."""
RUN_TO_RUN = {"ttft": 0.067, "e2e": 0.007, "itl": 0.0065}
"""MAPE of one run of a real server as a prediction of another, by metric, as a fraction.

Medians of 13 pairs of recordings of Qwen3-14B on an H100 at 2 to 10 requests per second with vLLM.
"""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles (linear between ranks) of one side."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a recording against its simulation. `mape` is a fraction.

    `pearson_r` is None where no correlation exists. `bias` is over-predict, under-predict, neutral, or empty when no
    recorded value is other than 0.
    """

    count: int
    real: Distribution
    sim: Distribution
    mape: float
    pearson_r: float | None
    bias: str
    quality: str


def compare(real: Floats, sim: Floats) -> Comparison:
    """Compare the paired values of a metric; neither array may be empty.

    A recorded metric that is constant, or has fewer than three values, has no correlation with anything. One that
    varies little is graded by its MAPE alone, too.
    """
    r = pearson_r(real, sim)
    error = mape(real, sim)
    if len(real) < 3 or is_constant(real):
        return _comparison(real, sim, error, None, grade(error, 1.0))
    return _comparison(real, sim, error, r, grade(error, r or 0.0, spread_of(real)))


def compare_compat(real: Floats, sim: Floats) -> Comparison:
    """Compare as the original does: where there is no correlation r is 0, which grades every constant metric as
    poor."""
    r = pearson_r(real, sim) or 0.0
    error = mape(real, sim)
    return _comparison(real, sim, error, r, grade(error, r))


def mape(real: Floats, sim: Floats) -> float:
    """Mean of |real - sim| / real over the pairs whose recorded value is not 0, as a fraction; 0 without any."""
    known = real != 0
    return float(np.mean(np.abs(real[known] - sim[known]) / real[known])) if known.any() else 0.0


def pearson_r(real: Floats, sim: Floats) -> float | None:
    """Pearson's correlation of the pairs; None with fewer than three, or when one side does not vary."""
    if len(real) < 3 or np.ptp(real) == 0 or np.ptp(sim) == 0:
        return None
    return float(np.corrcoef(real, sim)[0, 1])


def is_constant(values: Floats) -> bool:
    """Whether the values vary no more than a repetition of the same measurement would."""
    return spread_of(values) <= CONSTANT_SPREAD


def spread_of(values: Floats) -> float:
    """Return the standard deviation over the mean; infinite for a mean of 0 about which values vary."""
    mean, deviation = abs(float(np.mean(values))), float(np.std(values))
    return deviation / mean if mean else math.inf if deviation else 0.0


def grade(error: float, r: float, spread: float = math.inf) -> str:
    """Return the grade of a MAPE (fraction) and a correlation, for recorded values of this `spread_of`."""
    return next(
        (name for name, below, above in GRADES if error < below and _is_followed(r, below, above, spread)), "poor"
    )


def _is_followed(r: float, below: float, above: float, spread: float) -> bool:
    """Return whether a correlation is high enough for a grade.

    Errors as large as the grade allows, independent of the values, leave a correlation of
    spread / sqrt(spread^2 + deviation^2). No more is asked for, for the rest is chance.
    """
    if spread <= VARIED_SPREAD:
        return True
    left = 1.0 if math.isinf(spread) else spread / math.hypot(spread, below * _DEVIATION_OF_MAPE)
    return r > min(above, left)


def distribution(values: Floats) -> Distribution:
    """Mean and percentiles; `values` must not be empty."""
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    return Distribution(float(np.mean(values)), p50, p90, p95, p99)


def _comparison(real: Floats, sim: Floats, error: float, r: float | None, quality: str) -> Comparison:
    return Comparison(len(real), distribution(real), distribution(sim), error, r, _bias(real, sim), quality)


def _bias(real: Floats, sim: Floats) -> str:
    known = real != 0
    if not known.any():
        return ""
    total = float(np.sum(sim[known] - real[known]))
    if total == 0:
        return "neutral"
    return "over-predict" if total > 0 else "under-predict"


NUM_SAMPLES = 1_000
LEVEL = 0.95


Interval = tuple[float, float]
"""The ends of an interval that holds a figure with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class ConfidenceIntervals:
    """The intervals of a comparison; errors are fractions. `pearson_r` is None where no correlation exists."""

    mape: Interval
    mean_error: Interval
    p99_error: Interval
    pearson_r: Interval | None


def confidence_intervals(real: Floats, sim: Floats, seed: int = 0) -> ConfidenceIntervals:
    """Intervals by resampling the pairs with replacement; the same seed gives the same ones.

    Requests that run together share their errors, so the intervals are somewhat too narrow.
    """
    generator = np.random.default_rng(seed)
    errors = np.abs(sim - real) / np.where(real == 0, np.nan, real)
    has_r = bool(len(real) >= 3 and not is_constant(real) and np.ptp(sim) > 0)
    figures = np.empty((NUM_SAMPLES, 4))
    at_once = max(1, _DRAWN_AT_ONCE // len(real))
    for first in range(0, NUM_SAMPLES, at_once):
        places = generator.integers(0, len(real), (min(at_once, NUM_SAMPLES - first), len(real)))
        figures[first : first + at_once] = _figures_of_samples(real[places], sim[places], errors[places], has_r)
    mape, mean_error, p99_error, r = (_interval(column) for column in figures.T)
    return ConfidenceIntervals(mape, mean_error, p99_error, r if has_r else None)


_DRAWN_AT_ONCE = 1_000_000
"""Values of samples that are held in memory together."""


def _figures_of_samples(real: Floats, sim: Floats, errors: Floats, has_r: bool) -> Floats:
    """Return MAPE, error of mean and of 99th percentile, and correlation of each row; not a number where unknown."""
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without any error
        sums, p99 = real.sum(axis=1), np.percentile(real, 99, axis=1)
        mean_errors = np.where(sums != 0, sim.sum(axis=1) / sums - 1, np.nan)
        p99_errors = np.where(p99 != 0, np.percentile(sim, 99, axis=1) / p99 - 1, np.nan)
        mapes = np.nanmean(errors, axis=1)
    varies = (np.ptp(real, axis=1) > 0) & (np.ptp(sim, axis=1) > 0) & has_r
    pairs = zip(real, sim, varies, strict=True)
    correlations = [float(np.corrcoef(one, other)[0, 1]) if each else np.nan for one, other, each in pairs]
    return np.stack([mapes, mean_errors, p99_errors, np.array(correlations)], axis=1)


def _interval(values: Floats) -> Interval:
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 0.0
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return low, high


METRICS = ("ttft", "e2e", "itl")
EXIT_CODE = 3


def parse_limits(text: str) -> dict[str, float]:
    """Limits on MAPE in percent, such as `ttft=15,e2e=5`, as fractions. Raises OptionError."""
    limits = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        name = name.strip().lower()
        try:
            percent = float(value)
        except ValueError:
            percent = -1.0
        if name not in METRICS or not 0 <= percent < float("inf"):
            allowed = f"{', '.join(METRICS)} with a percentage, such as ttft=15,e2e=5"
            raise OptionError(f"--fail-over takes {allowed}; got {part!r}")
        if name in limits:
            raise OptionError(f"--fail-over names {name} twice")
        limits[name] = percent / 100
    return limits


def exceeded_limits(metrics: Mapping[str, Comparison], limits: Mapping[str, float]) -> list[str]:
    """A line for each limit that the errors exceed. Raises OptionError for a limit on what was not compared."""
    lines = []
    for name, limit in limits.items():
        if name not in metrics:
            raise OptionError(
                f"--fail-over {name} has nothing to judge: no pair has a time between tokens on both sides"
            )
        if metrics[name].mape > limit:
            lines.append(f"{name.upper()} MAPE {metrics[name].mape:.1%} is over the limit of {limit:.1%}")
    return lines
