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

    TTFT includes the queueing overhead before the engine and the output overhead of the first token; E2E ends with the
    last token and the overhead after it.
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
    if sequence.first_token_at is not None:
        ttft_us = sequence.first_token_at + engine.latency.output_token_time - sequence.arrived_at
    if sequence.outcome in COMPLETED:
        assert ttft_us is not None
        itl_sum_us = _itl_sum(engine, sequence)
        has_output = sequence.request.output_tokens > 0
        e2e_us = ttft_us + itl_sum_us + (engine.latency.post_decode_time if has_output else 0)
        if has_output:
            capped = sequence.outcome is Outcome.LENGTH_CAPPED
            gaps = (sequence.num_decoded_tokens if capped else sequence.request.output_tokens) - 1
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


def _itl_sum(engine: Engine, sequence: Sequence) -> Micros:
    """All time between a request's first and last token.

    BLIS counts a step's duration plus one output overhead for each token, so time between steps in which a request got
    nothing is not part of it. With vLLM's scheduling it is what passes between the ends of its steps.
    """
    if engine.config.scheduling == "blis":
        overheads_us = sequence.num_decoded_tokens * engine.latency.output_token_time
        return overheads_us + sum(engine.steps.run_time(first, count) for first, count in sequence.token_runs)
    if not sequence.token_runs:
        return 0
    assert sequence.first_token_step is not None
    first, count = sequence.token_runs[-1]
    return engine.steps.end(first + count - 1) - engine.steps.end(sequence.first_token_step)


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
    engine = simulated.engine
    sequences = [sequence for _, sequence in simulated.requests if sequence and sequence.outcome in COMPLETED]
    if engine.config.scheduling == "blis":
        counts = _tokens_per_step(engine, (run for sequence in sequences for run in sequence.token_runs))
        gaps_us = engine.steps.durations() + engine.latency.output_token_time
        return _pool(gaps_us[counts > 0], counts[counts > 0])
    ends_us = engine.steps.ends()
    counts = _tokens_per_step(engine, ((first + 1, count - 1) for s in sequences for first, count in s.token_runs))
    # Within a run each token comes one step after the one before; the first of a run comes after a longer gap, if any.
    starts_us = [ends_us[run] - ends_us[before] for s in sequences for before, run in _run_starts(s)]
    gaps_us = np.concatenate([np.diff(ends_us, prepend=0)[counts > 0], np.array(starts_us, np.int64)])
    return _pool(gaps_us, np.concatenate([counts[counts > 0], np.ones(len(starts_us), np.int64)]))


def _run_starts(sequence: Sequence) -> Iterable[tuple[int, int]]:
    """For each run of token steps, the step of the token before it and its own first step."""
    before = sequence.first_token_step
    assert before is not None
    for first, count in sequence.token_runs:
        yield before, first
        before = first + count - 1


def _tokens_per_step(engine: Engine, runs: Iterable[Iterable[int]]) -> npt.NDArray[np.int64]:
    """How many of `runs`, given as first step and length, each step is part of."""
    changes = np.zeros(len(engine.steps) + 1, np.int64)
    for first, count in runs:
        changes[first] += 1
        changes[first + count] -= 1
    return np.cumsum(changes[:-1])


def _pool(values_us: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None) -> Pool:
    order = np.argsort(values_us, kind="stable")
    weights = np.ones_like(values_us) if counts is None else counts
    return Pool(values_us[order], np.cumsum(weights[order]))
