"""Requests as readings of a server show them: when they came, and how long their prompts and outputs were."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blis_sim.bench.watch.readings import HITS, OUTPUTS, PROMPTS, QUERIES, SUCCESS, Histogram, Reading, bucket_counts
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import PrefixGroupBlocks, Request
from replay.arrivals.arrival import Arrival
from traces import TraceRow

Floats = npt.NDArray[np.float64]
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
    whole = readings[-1].histograms[name].since(readings[0].histograms[name])
    pieces = [after.histograms[name].since(before.histograms[name]) for before, after in _pairs(readings)]
    some = [each for each in pieces if each.count > 0]
    mean = whole.total / whole.count
    squares = sum(each.count * (each.total / each.count - mean) ** 2 for each in some)
    return Lengths(whole, (squares / (len(some) - 1)) ** 0.5 if len(some) > 1 else float("inf"))


def _pairs(readings: Sequence[Reading]) -> list[tuple[Reading, Reading]]:
    return list(pairwise(readings))


def num_arrived(readings: Sequence[Reading]) -> list[int]:
    """Return how many requests came between each reading and the next: those that ended, and those more in flight."""
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
