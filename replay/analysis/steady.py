"""The steady part of a run: rates, queues, and the share of each resource that a run takes."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from blis_sim.engine.context import StepLog
from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.units import Micros
from replay.analysis.clusters import disaggregation_of
from replay.simulation.record import NEVER, NO_OUTCOME, OUTCOMES, Bools, Floats, Ints, Record
from replay.simulation.simulate import Simulated

# The steady part of a run: rates at which requests come and go; and queues, in all and of single instances.

_WARM_UP_SHARE = 0.1
_LEAST_ARRIVALS = 20
_NUM_SAMPLES = 256
_FILLING_SHARE = 0.2
"""Share of the time of arrivals in which a system fills up, which says nothing about its steady state."""
LEAST_TIME_SCALES = 8.0
"""Time scales of the number of requests in the system that a steady state lasts. A straight line has three."""
_LEAST_SHARE = 0.05
_DEVIATIONS = 4.0
_FILLING_DURATIONS = 6.0
"""A system near its capacity fills up for long: the share of arrivals that stay falls with the durations that pass."""
_LEAST_EXCESS = 1.15
"""Share of the capacity that the arrivals exceed where it is estimated, which is done from few requests."""
_EMPTY_SHARE = 0.05
_STAYING = [NO_OUTCOME, OUTCOMES.index(Outcome.TIMED_OUT)]


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
    """A number of requests in the system that grows for as long as requests arrive."""

    offered_per_s: float
    served_per_s: float
    """Requests that complete; in a run not much longer than they take, also after its last arrival."""
    queue_growth_per_min: float
    """Growth of the number of requests that have arrived and not completed, by least squares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """Whether a run is long enough to know its steady state.

    It is judged by the number of requests in the system while requests arrive: its integrated autocorrelation time is
    the time scale of the queue. A run that is neither steady nor overloaded is too short to tell.
    """

    is_steady: bool | None
    """None where nothing completes in a run that is long enough: there is no service to be steady."""
    overload: Overload | None
    time_scale_s: float
    """0 where too few requests arrive to know it."""
    num_time_scales: float
    """Time scales from the end of the filling up to the last arrival."""
    num_requests_enough: int | None = None
    """Requests with which a longer run of this load was steady; None where no longer one was tried."""

    @property
    def is_known(self) -> bool:
        """Whether the run is long enough to tell a steady state from an overload."""
        return self.is_steady is not False or self.overload is not None


_UNKNOWN = Steadiness(is_steady=False, overload=None, time_scale_s=0.0, num_time_scales=0.0)


def steadiness(record: Record) -> Steadiness:
    """Judge a run by the number of requests in the system.

    An overload is a growth beyond chance: beyond four deviations of a Poisson count. It must also exceed the growth of
    a system that fills up near its capacity.
    """
    arrived_at = np.sort(record.arrived_at)
    if len(arrived_at) < 2 * _LEAST_ARRIVALS or arrived_at[0] == arrived_at[-1]:
        return _UNKNOWN
    time_scale_s, num_time_scales = _time_scales(arrived_at, lambda instants: in_system_at(record, instants))
    found = _growth_of(record, arrived_at)
    is_steady: bool | None = found is None and num_time_scales >= LEAST_TIME_SCALES
    if is_steady and not record.is_completed.any():
        is_steady = None
    return Steadiness(is_steady=is_steady, overload=found, time_scale_s=time_scale_s, num_time_scales=num_time_scales)


def time_scales_so_far(arrived_at: Ints, left_at: Ints) -> float | None:
    """Return the time scales of a run that goes on, up to its last arrival; None where it may be an overload.

    `arrived_at` and `left_at` are the instants of all arrivals and of requests that completed, ascending. The result is
    that of `steadiness` for these arrivals, as what follows the last of them matters to an overload alone.
    """
    if len(arrived_at) < 2 * _LEAST_ARRIVALS or arrived_at[0] == arrived_at[-1]:
        return None

    def present_at(instants: Ints) -> Ints:
        return np.searchsorted(arrived_at, instants, side="right") - np.searchsorted(left_at, instants, side="right")

    count, growth, _, _ = _rise(arrived_at, present_at)
    return _time_scales(arrived_at, present_at)[1] if growth <= _chance(count) else None


def _time_scales(arrived_at: Ints, present_at: Callable[[Ints], Ints]) -> tuple[float, float]:
    """Return the time scale of the number of requests in the system in seconds, and how often it fits in the run."""
    start, end = int(arrived_at[0]), int(arrived_at[-1])
    instants = np.linspace(start + _FILLING_SHARE * (end - start), end, _NUM_SAMPLES).astype(np.int64)
    step_s = float(instants[-1] - instants[0]) / 1e6 / (_NUM_SAMPLES - 1)
    time_scale_s = step_s * _autocorrelation_time(present_at(instants).astype(np.float64))
    return time_scale_s, step_s * (_NUM_SAMPLES - 1) / time_scale_s


def _rise(arrived_at: Ints, present_at: Callable[[Ints], Ints]) -> tuple[int, float, Ints, Ints]:
    """Return the arrivals in the second half of their time, the growth in it, instants and the numbers at these."""
    end = int(arrived_at[-1])
    start = (int(arrived_at[0]) + end) // 2
    instants = np.linspace(start, end, _NUM_SAMPLES).astype(np.int64)
    present = present_at(instants)
    growth = _slope_per_s(instants, present) * (end - start) / 1e6
    return _num_between(arrived_at, start, end), growth, instants, present


def _chance(count: int) -> float:
    """Return the growth during so many arrivals that may be chance."""
    return max(_DEVIATIONS * math.sqrt(count), _LEAST_SHARE * count)


def _growth_of(record: Record, arrived_at: Ints) -> Overload | None:
    """Return the growth in the second half of the arrivals, since the system was last nearly empty."""
    end = int(arrived_at[-1])
    start = (int(arrived_at[0]) + end) // 2
    count, growth, instants, present = _rise(arrived_at, lambda instants: in_system_at(record, instants))
    if count < _LEAST_ARRIVALS or growth <= _chance(count):
        return None
    lone_us = _lone_duration_us(record)
    if lone_us is None:
        return None
    filling_share = _FILLING_DURATIONS * lone_us / (end - int(arrived_at[0]))
    offered_per_s, served_per_s = count / (end - start) * 1e6, _served_per_s(record, start, end)
    if served_per_s >= (1 - _LEAST_SHARE) * offered_per_s:
        return None
    exceeds = offered_per_s > _LEAST_EXCESS * _capacity_per_s(served_per_s, float(present.mean()), lone_us)
    if not exceeds and growth <= (_LEAST_SHARE + filling_share) * count:
        return None
    begin = int(np.flatnonzero(present <= _EMPTY_SHARE * present.max()).max(initial=0))
    if _num_between(arrived_at, int(instants[begin]), end) < _LEAST_ARRIVALS:
        begin = 0
    start = int(instants[begin])
    duration_s = (end - start) / 1e6
    ended_at = np.sort((record.arrived_at + record.e2e_us)[record.is_completed])
    served_per_s = _num_between(ended_at, start, end) / duration_s
    if float(np.median(record.e2e_us[record.is_completed])) > (end - start) / 2:  # few have had the time to complete
        served_per_s = _full_rate_per_s(ended_at, (start + end) // 2, end, int(present[-1]))
    return Overload(
        offered_per_s=_num_between(arrived_at, start, end) / duration_s,
        served_per_s=served_per_s,
        queue_growth_per_min=_slope_per_s(instants[begin:], present[begin:]) * 60,
    )


def _lone_duration_us(record: Record) -> float | None:
    """Return about how long a request of mean length takes without others; None where none completed."""
    completed = record.is_completed & (record.output_tokens > 0)
    if not completed.any():
        return None
    tokens = record.output_tokens[completed]
    served_us = (record.e2e_us - record.scheduling_delay_us)[completed]
    return float((served_us / tokens).min() * tokens.mean())


def _full_rate_per_s(ended_at: Ints, start: int, end: int, num_present: int) -> float:
    """Return how many requests complete from `start` on, up to the instant after `end` when half of those are left."""
    until = int(np.searchsorted(ended_at, end, side="right")) + num_present // 2
    until_us = max(end, int(ended_at[until - 1])) if until <= len(ended_at) else end
    return _num_between(ended_at, start, until_us) / (until_us - start) * 1e6


def _served_per_s(record: Record, start: int, end: int) -> float:
    """Return how many requests are served in a stretch of time, each spread evenly over the time that it takes."""
    completed = record.is_completed
    begun = (record.arrived_at + record.scheduling_delay_us)[completed]
    ended = (record.arrived_at + record.e2e_us)[completed]
    inside = np.clip(np.minimum(ended, end) - np.maximum(begun, start), 0, None)
    return float((inside / np.maximum(ended - begun, 1)).sum()) / (end - start) * 1e6


def _capacity_per_s(served_per_s: float, num_present: float, lone_us: float) -> float:
    """Estimate how many requests a system serves at most, from a stretch of time with this mean number in it.

    The time of a step, and so each duration, grows by an equal amount with each request. The duration of a lone request
    and the duration in this stretch give the amount. Its inverse is the capacity.
    """
    if not served_per_s:
        return 0.0
    added_s = (num_present / served_per_s - lone_us / 1e6) / num_present
    return 1 / added_s if added_s > 0 else math.inf


def _autocorrelation_time(values: Floats) -> float:
    """Return the integrated autocorrelation time in samples, at least 1: up to the first lag without correlation."""
    apart = values - values.mean()
    variance = float(apart @ apart)
    if variance == 0:
        return 1.0
    total = 1.0
    for lag in range(1, len(values) // 2):
        correlation = float(apart[:-lag] @ apart[lag:]) / variance
        if correlation <= 0:
            break
        total += 2 * correlation
    return total


def _num_between(ascending: Ints, start: int, end: int) -> int:
    """Return how many instants lie after `start` and not after `end`."""
    return int(np.searchsorted(ascending, end, side="right") - np.searchsorted(ascending, start, side="right"))


def _slope_per_s(instants: Ints, values: Ints) -> float:
    return float(np.polyfit((instants - instants[0]) / 1e6, values, 1)[0])


def steady_state(record: Record) -> SteadyState | None:
    """Return the steady part of a run; None where few requests arrive in it, or half of them take longer than it."""
    completed = record.is_completed
    if not completed.any():
        return None
    half_us, most_us = _served_us(record, completed)
    ascending = np.sort(record.arrived_at)
    start = int(max(quantile(ascending, _WARM_UP_SHARE), int(ascending[0]) + most_us))
    end = int(ascending[-1])
    num_arrivals = _num_between(ascending, start, end)
    del ascending
    if num_arrivals < _LEAST_ARRIVALS or end - start < half_us:
        return None
    ended_at = (record.arrived_at + record.e2e_us)[completed]
    num_ended = int(((ended_at > start) & (ended_at <= end)).sum())
    del ended_at
    duration_s = (end - start) / 1e6
    return SteadyState(
        start_s=start / 1e6,
        end_s=end / 1e6,
        offered_per_s=num_arrivals / duration_s,
        requests_per_s=num_ended / duration_s,
        output_tokens_per_s=_tokens_between(record, start, end) / duration_s,
    )


def _served_us(record: Record, completed: Bools) -> tuple[float, float]:
    """Return the median and the 90 % quantile of the times from the first scheduling to the end."""
    served_us = (record.e2e_us - record.scheduling_delay_us)[completed]
    served_us.sort()
    return quantile(served_us, 0.5), quantile(served_us, 0.9)


def quantile(ascending: Ints, share: float) -> float:
    """Return the result of np.quantile, to the last bit, which would load all of np.ma: 20 ms."""
    rank = share * (len(ascending) - 1)
    lower = int(rank)
    low, high = float(ascending[lower]), float(ascending[min(lower + 1, len(ascending) - 1)])
    part = rank - lower
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def in_system_at(record: Record, instants: Ints) -> Ints:
    """Return how many requests have arrived and not completed at each instant; those that time out never complete.

    Requests that were turned away are left out.
    """
    completed = record.is_completed
    joined = record.arrived_at[completed | record.has_outcome(*_STAYING)]
    joined.sort()
    num_joined = np.searchsorted(joined, instants, side="right")
    del joined
    left = (record.arrived_at + record.e2e_us)[completed]
    left.sort()
    return num_joined - np.searchsorted(left, instants, side="right")


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


_REQUESTS_AT_ONCE = 1 << 17


def _tokens_between(record: Record, start: int, end: int) -> float:
    """Return the output tokens of completed requests in a stretch of time, those after the first evenly spread."""
    places = np.flatnonzero(record.is_completed)
    parts, num_firsts = np.zeros(len(places)), 0
    for first in range(0, len(places), _REQUESTS_AT_ONCE):
        here = slice(first, first + _REQUESTS_AT_ONCE)
        some = places[here]
        first_at = record.arrived_at[some] + record.ttft_us[some]
        last_at = record.arrived_at[some] + record.e2e_us[some]
        tokens = record.tokens_at(some).astype(np.float64)
        inside: Floats = np.clip(np.minimum(last_at, end) - np.maximum(first_at, start), 0, None)
        shares = np.divide(inside, last_at - first_at, out=np.zeros_like(tokens), where=last_at > first_at)
        parts[here] = np.maximum(tokens - 1, 0) * shares
        num_firsts += int(((first_at > start) & (first_at <= end) & (tokens > 0)).sum())
    return float(parts.sum() + num_firsts)


def num_blocked_lines(simulated: Simulated) -> int:
    """Count the instances whose wait queue, averaged over their steps, is more than twice the mean of all instances.

    0 for less than two instances. A request counts as waiting until it is last admitted.
    """
    instances = simulated.simulation.instances
    if len(instances) < 2:
        return 0
    parts = _waits_of_parts(simulated)
    lengths = [
        _mean_length(simulated.requests.tokens.steps_waited(number), parts, number, engine.steps)
        for number, engine in enumerate(instances)
    ]
    mean = sum(lengths) / len(lengths)
    return sum(length > 2 * mean for length in lengths) if mean > 0 else 0


_NEVER_LEFT = np.iinfo(np.int64).max


def _waits_of_parts(simulated: Simulated) -> list[tuple[int, int, int]]:
    """Return the waits of requests with a prompt computed elsewhere, at both instances: the instance, and when each
    joined and left the wait queue."""
    disaggregation = disaggregation_of(simulated.simulation)
    if disaggregation is None:
        return []
    parts = [part for each in disaggregation.separated for part in (each, each.prompt_part) if part is not None]
    return [
        (part.instance, part.queued_at, _NEVER_LEFT if part.scheduled_at is None else part.scheduled_at)
        for part in parts
        if part.queued_at is not None
    ]


def _mean_length(num_waited: int, parts: list[tuple[int, int, int]], instance: int, steps: StepLog) -> float:
    """Requests that wait while a step of an instance is under way, on average; 0 without steps."""
    if not len(steps):
        return 0.0
    its = [(queued_at, left_at) for number, queued_at, left_at in parts if number == instance]
    if its:
        starts, _ = steps.span(steps.num_forgotten, len(steps))
        begins, ends = np.searchsorted(starts, np.array(its)).T
        num_waited += int(np.maximum(ends - begins, 0).sum())
    return num_waited / len(steps)


# The share of each resource that a run takes: time of the instances, KV memory, places for sequences, the queue.


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """The use of resources while requests arrive, of the instances that are fullest where nothing else is said."""

    busy_fractions: Sequence[float]
    """The mean share of time in which a step is under way, of prefill and of decode instances or of all."""
    peak_kv_fraction: float
    """The largest share of the KV cache that running requests hold, shared prefixes counted for each."""
    peak_sequences: int
    """The most requests that run at once on one instance."""
    peak_sequences_fraction: float
    """The share of the limit of sequences that they take."""
    queueing_fraction: float
    """The share of the time to the first token that requests wait, at the 99th percentile of the two."""


def resources_of(simulated: Simulated) -> ResourceUse:
    """Return the use of resources of a finished run."""
    record, engines = simulated.requests, simulated.simulation.instances
    arrived_at = record.arrived_at
    first, last = (int(arrived_at.min()), int(arrived_at.max())) if len(record) else (0, 0)
    peaks = list(_instance_peaks(record, engines))
    disaggregation = disaggregation_of(simulated.simulation)
    roles = [None] * len(engines) if disaggregation is None else disaggregation.engine_roles
    pools = {role: [number for number, own in enumerate(roles) if own == role] for role in roles}
    return ResourceUse(
        busy_fractions=tuple(
            sum(busy_fraction(record, number, first, last) for number in pool) / len(pool) for pool in pools.values()
        ),
        peak_kv_fraction=max((kv for kv, _, _ in peaks), default=0.0),
        peak_sequences=max((running for _, running, _ in peaks), default=0),
        peak_sequences_fraction=max((fraction for _, _, fraction in peaks), default=0.0),
        queueing_fraction=_queueing_fraction(record),
    )


def busy_fraction(record: Record, instance: int, since: Micros, until: Micros) -> float:
    """Return the share of an interval in which a step of an instance was under way."""
    return min(1.0, float(record.tokens.busy_us(instance, since, until)) / (until - since)) if until > since else 0.0


def _instance_peaks(record: Record, engines: Sequence[Engine]) -> Iterator[tuple[float, int, float]]:
    """Yield for each instance the peak share of the KV cache, the peak of running requests, and its share."""
    delay_us, e2e_us, instance = record.scheduling_delay_us, record.e2e_us, record.instance
    is_known = (delay_us != NEVER) & (e2e_us != NEVER)
    starts, ends = record.arrived_at + delay_us, record.arrived_at + e2e_us
    for number, engine in enumerate(engines):
        own = is_known & (instance == number)
        if not own.any():
            continue
        running, tokens = _peaks_of(starts, ends, record.input_tokens, record.output_tokens, own)
        config = engine.config
        capacity = config.total_kv_blocks * config.block_size_tokens
        yield min(1.0, tokens / capacity), running, min(1.0, running / config.max_num_seqs)


def _peaks_of(starts: Ints, ends: Ints, prompts: Ints, outputs: Ints, own: Bools) -> tuple[int, float]:
    """Return the most requests that run at once, and the most tokens that they hold; outputs grow evenly."""
    start, end = starts[own], np.maximum(ends[own], starts[own] + 1)
    growth = outputs[own] / (end - start)
    base = prompts[own] - growth * start
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    at = at[order]
    signs = np.concatenate([np.ones(len(start)), -np.ones(len(end))])[order]
    running = np.cumsum(signs)
    bases = np.cumsum(signs * np.concatenate([base, base])[order])
    growths = np.cumsum(signs * np.concatenate([growth, growth])[order])
    tokens = bases[:-1] + growths[:-1] * at[1:]  # just before the next start or end
    return int(running.max()), float(tokens.max(initial=0.0))


def _queueing_fraction(record: Record) -> float:
    is_known = (record.ttft_us != NEVER) & (record.scheduling_delay_us != NEVER)
    if not is_known.any():
        return 0.0
    waits, first_tokens = record.scheduling_delay_us[is_known], record.ttft_us[is_known]
    return min(1.0, float(np.percentile(waits, 99)) / max(1.0, float(np.percentile(first_tokens, 99))))
