"""The steady part of a run: rates at which requests come and go; and queues, in all and of single instances."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from blis_sim.engine.step_log import StepLog
from replay.analysis.clusters import disaggregation_of
from replay.simulation.measure import NO_OUTCOME
from replay.simulation.record import NEVER, Floats, Ints, Record
from replay.simulation.simulate import Simulated

_WARM_UP_SHARE = 0.1
_LEAST_ARRIVALS = 20
_NUM_SAMPLES = 200
_DEVIATIONS = 2.0
_LEAST_SHARE = 0.05
_EMPTY_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Rates between the warm-up and the last arrival.

    The warm-up lasts until a tenth of the requests has arrived, and for as long as nine of ten requests are served.
    """

    start_s: float
    end_s: float
    offered_per_s: float
    """Requests that arrive."""
    requests_per_s: float
    """Requests that complete."""
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """A queue that grows in the second half of the time in which requests arrive, since it was last nearly empty."""

    offered_per_s: float
    served_per_s: float
    """Requests that complete."""
    queue_growth_per_min: float
    """Growth of the number of requests that wait to be scheduled for the first time, by least squares."""


def overload(record: Record) -> Overload | None:
    """Return the overload of a run; None where the growth of the queue may be chance.

    Beyond chance are two deviations of a Poisson count, and a twentieth of the arrivals.
    """
    if not len(record):
        return None
    arrived_at = np.sort(record.arrived_at)
    end = int(arrived_at[-1])
    start = (int(arrived_at[0]) + end) // 2
    count = _num_between(arrived_at, start, end)
    if count < _LEAST_ARRIVALS:
        return None
    instants = np.linspace(start, end, _NUM_SAMPLES).astype(np.int64)
    waiting = waiting_at(record, instants)
    if _slope_per_s(instants, waiting) * (end - start) / 1e6 <= max(_DEVIATIONS * count**0.5, _LEAST_SHARE * count):
        return None
    begin = int(np.flatnonzero(waiting <= _EMPTY_SHARE * waiting.max()).max(initial=0))
    if _num_between(arrived_at, int(instants[begin]), end) < _LEAST_ARRIVALS:
        begin = 0
    start = int(instants[begin])
    duration_s = (end - start) / 1e6
    ended_at = np.sort((record.arrived_at + record.e2e_us)[record.is_completed])
    return Overload(
        offered_per_s=_num_between(arrived_at, start, end) / duration_s,
        served_per_s=_num_between(ended_at, start, end) / duration_s,
        queue_growth_per_min=_slope_per_s(instants[begin:], waiting[begin:]) * 60,
    )


def _num_between(ascending: Ints, start: int, end: int) -> int:
    """Return how many instants lie after `start` and not after `end`."""
    return int(np.searchsorted(ascending, end, side="right") - np.searchsorted(ascending, start, side="right"))


def _slope_per_s(instants: Ints, values: Ints) -> float:
    return float(np.polyfit((instants - instants[0]) / 1e6, values, 1)[0])


def steady_state(record: Record) -> SteadyState | None:
    """Return the steady part of a run; None where few requests arrive in it, or half of them take longer than it."""
    arrived_at, completed = record.arrived_at, record.is_completed
    if not completed.any():
        return None
    ended_at = (arrived_at + record.e2e_us)[completed]
    served_us, ascending = np.sort((record.e2e_us - record.scheduling_delay_us)[completed]), np.sort(arrived_at)
    half_us, most_us = quantile(served_us, 0.5), quantile(served_us, 0.9)
    start = int(max(quantile(ascending, _WARM_UP_SHARE), int(ascending[0]) + most_us))
    end = int(ascending[-1])
    num_arrivals = _num_between(ascending, start, end)
    if num_arrivals < _LEAST_ARRIVALS or end - start < half_us:
        return None
    duration_s = (end - start) / 1e6
    return SteadyState(
        start_s=start / 1e6,
        end_s=end / 1e6,
        offered_per_s=num_arrivals / duration_s,
        requests_per_s=int(((ended_at > start) & (ended_at <= end)).sum()) / duration_s,
        output_tokens_per_s=_tokens_between(record, start, end) / duration_s,
    )


def quantile(ascending: Ints, share: float) -> float:
    """Return the result of np.quantile, to the last bit, which would load all of np.ma: 20 ms."""
    rank = share * (len(ascending) - 1)
    lower = int(rank)
    low, high = int(ascending[lower]), int(ascending[min(lower + 1, len(ascending) - 1)])
    part = rank - lower
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def waiting_at(record: Record, instants: Ints) -> Ints:
    """Return how many requests wait to be scheduled for the first time at each instant.

    A request that ended before it was scheduled is left out: the record lacks the instant of its end.
    """
    delay_us = record.scheduling_delay_us
    is_scheduled = delay_us != NEVER
    stays = ~is_scheduled & (record.outcome == NO_OUTCOME)
    joined = np.sort(record.arrived_at[is_scheduled | stays])
    left = np.sort((record.arrived_at + delay_us)[is_scheduled])
    return np.searchsorted(joined, instants, side="right") - np.searchsorted(left, instants, side="right")


def _tokens_between(record: Record, start: int, end: int) -> float:
    """Return the output tokens of completed requests in a stretch of time, those after the first evenly spread."""
    completed = record.is_completed
    first_at = (record.arrived_at + record.ttft_us)[completed]
    last_at = (record.arrived_at + record.e2e_us)[completed]
    tokens = record.output_tokens[completed].astype(np.float64)
    inside: Floats = np.clip(np.minimum(last_at, end) - np.maximum(first_at, start), 0, None)
    shares = np.divide(inside, last_at - first_at, out=np.zeros_like(tokens), where=last_at > first_at)
    is_first_inside = (first_at > start) & (first_at <= end)
    return float((np.maximum(tokens - 1, 0) * shares).sum() + (is_first_inside & (tokens > 0)).sum())


def num_blocked_lines(simulated: Simulated) -> int:
    """Count the instances whose wait queue, averaged over their steps, is more than twice the mean of all instances.

    0 for less than two instances. A request counts as waiting until it is last admitted.
    """
    instances = simulated.simulation.instances
    if len(instances) < 2:
        return 0
    waits = _waits(simulated)
    lengths = [_mean_length(waits, number, engine.steps) for number, engine in enumerate(instances)]
    mean = sum(lengths) / len(lengths)
    return sum(length > 2 * mean for length in lengths) if mean > 0 else 0


class _Waits(NamedTuple):
    """One entry for each time in a wait queue."""

    instance: Ints
    queued_at: Ints
    left_at: Ints
    """The last admission; the largest integer for requests that were never admitted."""


def _waits(simulated: Simulated) -> _Waits:
    """Return the waits of all requests, of those with a prompt computed elsewhere at both instances."""
    record = simulated.requests
    delay_us = record.scheduling_delay_us
    left_at = np.where(delay_us == NEVER, _NEVER_LEFT, record.arrived_at + delay_us)
    waits = _Waits(record.instance, record.queued_at, left_at)
    disaggregation = disaggregation_of(simulated.simulation)
    if disaggregation is not None:
        ids = {sequence.request.id for sequence in disaggregation.separated}
        is_whole = np.array([request_id not in ids for request_id in record.ids], np.bool_)
        parts = [part for each in disaggregation.separated for part in (each, each.prompt_part) if part is not None]
        of_parts = (
            [part.instance for part in parts],
            [NEVER if part.queued_at is None else part.queued_at for part in parts],
            [_NEVER_LEFT if part.scheduled_at is None else part.scheduled_at for part in parts],
        )
        columns = zip(waits, of_parts, strict=True)
        waits = _Waits(*(np.concatenate([whole[is_whole], np.array(of, np.int64)]) for whole, of in columns))
    queued = waits.queued_at != NEVER
    return _Waits(*(column[queued] for column in waits))


_NEVER_LEFT = np.iinfo(np.int64).max


def _mean_length(waits: _Waits, instance: int, steps: StepLog) -> float:
    """Requests that wait while a step of an instance is under way, on average; 0 without steps."""
    if not len(steps):
        return 0.0
    starts, _ = steps.span(0, len(steps))
    its = waits.instance == instance
    begin = np.searchsorted(starts, waits.queued_at[its])
    end = np.searchsorted(starts, waits.left_at[its])
    return float(np.maximum(end - begin, 0).sum()) / len(steps)
