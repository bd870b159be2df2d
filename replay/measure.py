"""What each request experienced, derived from the engine's step log after the run."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core import Engine
from engine.sequence import Outcome, Sequence
from engine.units import Micros
from replay.arrivals import Arrival
from replay.simulate import Simulated

COMPLETED = frozenset({Outcome.COMPLETED, Outcome.LENGTH_CAPPED})


@dataclass(frozen=True, slots=True)
class Measured:
    """One request's latencies as its client sees them, in microseconds; None for what never happened.

    TTFT includes the queueing overhead before the engine and the output overhead of the first token. E2E is TTFT plus
    all inter-token latencies plus the overhead after the last token. An inter-token latency is a step's duration plus
    the output overhead of one token, so time between steps in which a request got nothing is not part of it.
    """

    arrival: Arrival
    outcome: Outcome | None
    ttft_us: Micros | None
    e2e_us: Micros | None
    itl_mean_us: float
    scheduling_delay_us: Micros | None
    output_tokens: int

    @property
    def is_completed(self) -> bool:
        return self.outcome in COMPLETED


def measure(simulated: Simulated) -> list[Measured]:
    """One entry per arrival, in order of arrival."""
    return [_measured(simulated.engine, arrival, sequence) for arrival, sequence in simulated.requests]


def _measured(engine: Engine, arrival: Arrival, sequence: Sequence | None) -> Measured:
    if sequence is None:
        return Measured(arrival, None, None, None, 0.0, None, 0)
    ttft_us = e2e_us = None
    itl_mean_us = 0.0
    overhead_us = engine.latency.output_token_time
    if sequence.first_token_at is not None:
        ttft_us = sequence.first_token_at + overhead_us - sequence.arrived_at
    if sequence.outcome in COMPLETED:
        assert ttft_us is not None
        num_gaps = sequence.num_decoded_tokens
        itl_sum_us = num_gaps * overhead_us + sum(
            engine.steps.run_time(first, count) for first, count in sequence.token_runs
        )
        has_output = sequence.request.output_tokens > 0
        e2e_us = ttft_us + itl_sum_us + (engine.latency.post_decode_time if has_output else 0)
        if has_output:
            capped = sequence.outcome is Outcome.LENGTH_CAPPED
            gaps = (num_gaps if capped else sequence.request.output_tokens) - 1
            itl_mean_us = itl_sum_us / max(gaps, 1)
    scheduled_at = sequence.scheduled_at
    return Measured(
        arrival=arrival,
        outcome=sequence.outcome,
        ttft_us=ttft_us,
        e2e_us=e2e_us,
        itl_mean_us=itl_mean_us,
        scheduling_delay_us=None if scheduled_at is None else scheduled_at - sequence.arrived_at,
        output_tokens=sequence.num_output_tokens if sequence.outcome in COMPLETED else 0,
    )


@dataclass(frozen=True, slots=True)
class Pool:
    """Whole-microsecond values with how often each occurs: a large sample kept small."""

    values_us: npt.NDArray[np.int64]
    """Ascending."""
    cumulative: npt.NDArray[np.int64]
    """Occurrences up to and including each value."""

    def __len__(self) -> int:
        return int(self.cumulative[-1]) if len(self.cumulative) else 0

    def at_rank(self, rank: int) -> int:
        """The value at 0-based `rank` of the sorted sample."""
        return int(self.values_us[np.searchsorted(self.cumulative, rank, side="right")])

    def mean_ms(self) -> float:
        """Mean in milliseconds, 0 without values."""
        if not len(self):
            return 0.0
        counts = np.diff(self.cumulative, prepend=0)
        return float(np.dot(self.values_us, counts)) / len(self) / 1000

    def percentile_ms(self, percent: float) -> float:
        """Linear interpolation at rank percent/100*(n-1), in milliseconds; 0 without values.

        The order of operations fixes the last bit, as in the reference results.
        """
        if not len(self):
            return 0.0
        rank = percent / 100 * (len(self) - 1)
        lower = int(rank)
        low = self.at_rank(lower)
        if rank == lower:
            return low / 1000
        return low / 1000 + (self.at_rank(lower + 1) - low) * (rank - lower) / 1000


def pool_of(values_us: Iterable[Micros]) -> Pool:
    """A pool of the given values."""
    return _pool(np.fromiter(values_us, np.int64), None)


def itl_pool(simulated: Simulated) -> Pool:
    """Every inter-token latency of every completed request.

    Counted per step rather than per token: O(steps log steps + requests), whatever the number of tokens.
    """
    steps = simulated.engine.steps
    starts_minus_ends = np.zeros(len(steps) + 1, np.int64)
    for _, sequence in simulated.requests:
        if sequence is not None and sequence.outcome in COMPLETED:
            for first, count in sequence.token_runs:
                starts_minus_ends[first] += 1
                starts_minus_ends[first + count] -= 1
    tokens_per_step = np.cumsum(starts_minus_ends[:-1])
    producing = tokens_per_step > 0
    values_us = steps.durations()[producing] + simulated.engine.latency.output_token_time
    return _pool(values_us, tokens_per_step[producing])


def _pool(values_us: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None) -> Pool:
    order = np.argsort(values_us, kind="stable")
    weights = np.ones_like(values_us) if counts is None else counts
    return Pool(values_us[order], np.cumsum(weights[order]))
