"""Predicted figures of a stretch of time, with intervals: requests that readings show, simulated several times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blis_sim.bench.watch.readings import (
    E2E,
    HITS,
    ITL,
    OUTPUTS,
    PROMPTS,
    QUERIES,
    SUCCESS,
    TTFT,
    Histogram,
    Reading,
    bucket_counts,
    increase_between,
    place_at,
)
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.sureness import sureness
from blis_sim.engine.latency.wrapped import PhaseShifted, SlowedLatency
from blis_sim.engine.request import PrefixGroupBlocks, Request
from replay.arrivals import Arrival
from replay.output.ensemble import sampled_latency_models
from replay.simulation.record import NEVER, Floats, Record
from replay.simulation.simulate import simulate
from replay.simulation.uncertainty import latency_sampler
from traces import TraceRow

FloatArray = npt.NDArray[np.float64]
_SHARED = "shared prompts"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the requests that ended: their histogram, and the standard deviation that sums over time show."""

    observed: Histogram
    spread: float

    def drawn(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return so many lengths, whose mean is the observed one."""
        buckets = bucket_counts(self.observed)
        weights = np.array([each[2] for each in buckets])
        chosen = generator.choice(len(buckets), count, p=weights / weights.sum())
        lows, highs = (np.array([each[side] for each in buckets])[chosen] for side in (0, 1))
        lengths = lows + (highs - lows) * generator.random(count)
        mean = self.observed.total / self.observed.count
        # A bucket is wide: lengths that are all equal show in that sums over short times have no spread.
        wide = float(lengths.std())
        narrowed = min(1.0, self.spread / wide) if wide else 0.0
        drawn: npt.NDArray[np.int64] = np.rint(mean + (lengths - lengths.mean()) * narrowed).astype(np.int64)
        return np.maximum(1, drawn)


def lengths_of(readings: Sequence[Reading], name: str) -> Lengths:
    """Return the lengths of the requests that ended between the first and the last reading."""
    whole = readings[-1].histograms[name].increase_since(readings[0].histograms[name])
    pieces = [after.histograms[name].increase_since(before.histograms[name]) for before, after in _pairs(readings)]
    some = [each for each in pieces if each.count > 0]
    mean = whole.total / whole.count
    squares = sum(each.count * (each.total / each.count - mean) ** 2 for each in some)
    return Lengths(whole, (squares / (len(some) - 1)) ** 0.5 if len(some) > 1 else float("inf"))


def _pairs(readings: Sequence[Reading]) -> list[tuple[Reading, Reading]]:
    return list(pairwise(readings))


def num_arrived(readings: Sequence[Reading]) -> list[int]:
    """Return how many requests came between readings: ended requests plus the increase of requests in flight."""
    found, total, given = [], 0.0, 0
    for before, after in _pairs(readings):
        total += max(0.0, after.values[SUCCESS] - before.values[SUCCESS] + after.in_flight - before.in_flight)
        found.append(round(total) - given)
        given = round(total)
    return found


def hit_rate(readings: Sequence[Reading]) -> float:
    """Return the share of prompt tokens that the prefix cache had."""
    first, last = readings[0].values, readings[-1].values
    queries = last[QUERIES] - first[QUERIES]
    return (last[HITS] - first[HITS]) / queries if queries > 0 else 0.0


def arrivals_of(readings: Sequence[Reading], config: EngineConfig, generator: np.random.Generator) -> list[Arrival]:
    """Return requests that came as the readings show, instants in microseconds since the first.

    Within the time between two readings any instant is as likely as any other. Requests that were in flight at the
    first reading come at once, with a part of their outputs.
    """
    in_flight = round(readings[0].in_flight)
    instants = [np.zeros(in_flight)]
    for (before, after), count in zip(_pairs(readings), num_arrived(readings), strict=True):
        instants.append(generator.uniform(before.at_s, after.at_s, count) - readings[0].at_s)
    at_s = np.sort(np.concatenate(instants), kind="stable")
    prompts = lengths_of(readings, PROMPTS).drawn(len(at_s), generator)
    outputs = lengths_of(readings, OUTPUTS).drawn(len(at_s), generator)
    outputs[:in_flight] = np.maximum(1, outputs[:in_flight] * generator.random(in_flight))
    cached = hit_rate(readings)
    limit = config.limit_tokens
    return [
        _arrival(number, int(at * 1e6), min(int(prompt), limit - 1), int(output), cached, config)
        for number, (at, prompt, output) in enumerate(zip(at_s, prompts, outputs, strict=True))
    ]


def _arrival(number: int, at_us: int, prompt: int, output: int, cached: float, config: EngineConfig) -> Arrival:
    output = max(1, min(output, config.limit_tokens - prompt))
    name = f"request_{number}"
    blocks = PrefixGroupBlocks(name, _SHARED, round(cached * prompt / config.block_size_tokens))
    request = Request(name, prompt, output, blocks, max_output_tokens=output)
    row = TraceRow(request_id=number, input_tokens=prompt, output_tokens=output, arrival_time_us=at_us)
    return Arrival(at_us, request, row)


INTERVAL_DEVIATIONS = 3.0
"""Standard deviations of the draws from their mean to either end of an interval, which 3 of 1,000 figures leave by
chance."""
_FEW_DRAWS = 3.0
"""By how much a spread is widened, over its degrees of freedom, for few draws determine it poorly: as in Student's
distribution at three deviations."""
OWN_SPREAD = 0.01
"""How much servers with the model, GPU and software differ from the one that was learned from."""
FIGURES = {TTFT: "TTFT", E2E: "E2E", ITL: "ITL"}


@dataclass(frozen=True, slots=True)
class Interval:
    """A predicted mean in seconds, and the least and largest that the server may show."""

    mean_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class ReadingWindow:
    """Readings to simulate, and the index of the first reading whose requests count; earlier ones are a warm-up."""

    readings: Sequence[Reading]
    start: int

    @property
    def seconds(self) -> tuple[float, float]:
        """Beginning and end of what counts, in seconds since the first reading."""
        first = self.readings[0].at_s
        return self.readings[self.start].at_s - first, self.readings[-1].at_s - first


def window_of(readings: Sequence[Reading], window_s: float) -> ReadingWindow | None:
    """Return the last `window_s` of readings, with those before to warm up; where these are short, a tenth of all
    readings is for that. None with fewer than three readings."""
    if len(readings) < 3:
        return None
    last, first = readings[-1].at_s, readings[0].at_s
    start = place_at(readings, max(last - window_s, first + 0.1 * (last - first)))
    return ReadingWindow(readings, start)


def predicted(
    window: ReadingWindow, deployment: Deployment, coefficients: str | None, num_draws: int, tolerance: float
) -> Mapping[str, Interval]:
    """Return the interval of the mean of each figure that all draws have, by the name of its histogram.

    vLLM measures from when it begins to read the prompt, a client from when it sends: the intervals hold both.
    """
    runs = []
    for number, latency in enumerate(_latencies(deployment, coefficients, num_draws)):
        generator = np.random.default_rng([0, number])
        arrivals = arrivals_of(window.readings, deployment.config, generator)
        run = simulate(Engine(deployment.config, latency, reports_steps=False), arrivals)
        runs.append(_draw_result(run.requests, *window.seconds))
    observed = increase_between(window.readings[window.start], window.readings[-1])
    mean_tokens = np.array([observed[name].mean or 0.0 for name in (PROMPTS, OUTPUTS)])
    before_s = deployment.latency.queueing_time(round(mean_tokens[0])) / 1e6
    found = {}
    for name in FIGURES:
        if all(name in run.means_s for run in runs):
            values = np.array([run.means_s[name] for run in runs])
            at = _adjusted(values, np.array([run.mean_tokens for run in runs]), mean_tokens)
            found[name] = _interval(*at, tolerance, 0.0 if name == ITL else before_s)
    return found


def _adjusted(values: Floats, tokens: Floats, observed_tokens: Floats) -> tuple[float, float]:
    """Return the mean of a figure, and its standard deviation, for requests as long as those that were observed.

    Some draws have longer requests in the window than the server had. What a longer mean prompt and output make of the
    figure shows in the draws themselves.
    """
    away = tokens - observed_tokens
    away = away[:, away.std(axis=0) > 0]
    terms = np.column_stack([np.ones(len(values)), away / away.std(axis=0)]) if away.size else np.ones((len(values), 1))
    solution = np.linalg.lstsq(terms, values, rcond=None)[0]
    left = values - terms @ solution
    freedom = max(1, len(values) - terms.shape[1])
    return float(solution[0]), float(np.sqrt((left**2).sum() / freedom)) * (1 + _FEW_DRAWS / freedom)


def _interval(mean: float, spread: float, tolerance: float, before_s: float) -> Interval:
    wide = INTERVAL_DEVIATIONS * spread + tolerance * mean
    return Interval(mean, max(0.0, mean - wide - before_s), mean + wide)


def speed_spread(deployment: Deployment) -> float:
    """Return the standard deviation of the speed of a server, as a share, where coefficients have no spread."""
    sure = sureness(deployment.latency_name, deployment.notes)
    return sure.step_error if _is_elsewhere(deployment) or sure.latency_model != "fitted" else OWN_SPREAD


def _is_elsewhere(deployment: Deployment) -> bool:
    """Return whether coefficients were learned for another deployment, so that their spreads do not apply."""
    return any("learned for" in note for note in deployment.notes)


def _latencies(deployment: Deployment, coefficients: str | None, num_draws: int) -> Iterator[LatencyModel]:
    """Yield latency models with coefficients drawn within their spread."""
    try:
        draw = None if _is_elsewhere(deployment) else latency_sampler(deployment.latency, coefficients)
    except EngineError:
        draw = None
    if draw is None:  # step times whose coefficients have no spread here: how far they are off is known as a whole
        spread = speed_spread(deployment)
        for number in range(num_draws):
            factor = 1.0 + spread * float(np.random.default_rng([1, number]).standard_normal())
            yield PhaseShifted(SlowedLatency(deployment.latency, max(0.2, factor)), number + 1)
        return
    yield from sampled_latency_models(draw, num_draws, 0)


@dataclass(frozen=True, slots=True)
class _DrawResult:
    """Counts of a server in one draw: the mean of each figure, and of prompts and outputs of requests that ended."""

    means_s: Mapping[str, float]
    mean_tokens: tuple[float, float]


def _draw_result(record: Record, start_s: float, end_s: float) -> _DrawResult:
    """Return the counts of a server between two instants: TTFT at first tokens, other figures at last tokens."""
    start_us, end_us = start_s * 1e6, end_s * 1e6
    first_at, last_at = record.arrived_at + record.ttft_us, record.arrived_at + record.e2e_us
    has_first = (record.ttft_us != NEVER) & (first_at >= start_us) & (first_at < end_us)
    has_last = record.is_completed & (record.e2e_us != NEVER) & (last_at >= start_us) & (last_at < end_us)
    found, tokens = {}, (0.0, 0.0)
    if has_first.any():
        found[TTFT] = float(record.ttft_us[has_first].mean()) / 1e6
    if has_last.any():
        found[E2E] = float(record.e2e_us[has_last].mean()) / 1e6
        tokens = float(record.input_tokens[has_last].mean()), float(record.output_tokens[has_last].mean())
        gaps = float(np.maximum(record.output_tokens[has_last] - 1, 0).sum())
        if gaps:
            found[ITL] = float((record.e2e_us - record.ttft_us)[has_last].sum()) / gaps / 1e6
    return _DrawResult(found, tokens)
