"""The outcome of every request of a run in columns: the client's view, percentiles of samples, and token times."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from copy import copy
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import output_delay, output_waits
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from replay.arrivals import Origin, RequestIds, numbers_of
from traces import TraceRow
from traces.packed import ROWS_AT_ONCE, PackedRows

# The client's view of one request, derived from the engine's step log at its end, and of many, in columns.

COMPLETED = frozenset({Outcome.COMPLETED, Outcome.LENGTH_CAPPED})


NEVER = -1
"""In place of a duration or an instant: it has not happened."""

Latencies: TypeAlias = tuple[Micros, Micros, float, Micros, int]
"""TTFT, E2E, mean ITL, scheduling delay, all in microseconds or `NEVER`, and output tokens of a completed request.

TTFT includes the queueing overhead before the engine and the output overhead of the first token. E2E ends with the last
token and the overhead after it. What tokens wait for the others of their step is not in it.
"""


class ClientView:
    """The clients' view of an engine. Its overheads are read once, because there are millions of requests."""

    __slots__ = ("_steps", "engine", "itl_from_steps", "output_token_time", "post_decode_time", "serializes_tokens")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.serializes_tokens = _serializes(engine)
        """Whether tokens wait for the others of their step."""
        self.output_token_time = engine.latency.output_token_time
        self.post_decode_time = engine.latency.post_decode_time
        self.itl_from_steps = engine.config.engine == "blis"
        self._steps = engine.steps

    def latencies(self, sequence: Sequence, at: Micros) -> Latencies:
        """The outcome of a request: complete when it ended at `at`, else the outcome so far."""
        arrived_at, first_token_at, scheduled_at = sequence.arrived_at, sequence.first_token_at, sequence.scheduled_at
        delay_us = NEVER if scheduled_at is None else scheduled_at - arrived_at
        if first_token_at is None:
            return NEVER, NEVER, 0.0, delay_us, 0
        ttft_us = first_token_at + self.output_token_time - arrived_at
        if sequence.outcome not in COMPLETED:
            return ttft_us, NEVER, 0.0, delay_us, 0
        itl_sum_us = self.sum_of_steps(sequence) if self.itl_from_steps else at - first_token_at
        num_planned = sequence.request.output_tokens
        if not num_planned:
            return ttft_us, ttft_us + itl_sum_us, 0.0, delay_us, sequence.num_output_tokens
        num_gaps = (num_planned if sequence.outcome is Outcome.COMPLETED else sequence.num_decoded_tokens) - 1
        e2e_us = ttft_us + itl_sum_us + self.post_decode_time
        return ttft_us, e2e_us, itl_sum_us / max(num_gaps, 1), delay_us, sequence.num_output_tokens

    def latencies_with_remote_prefill(self, sequence: Sequence, prompt: Sequence, at: Micros) -> Latencies:
        """The outcome of a request whose prompt another instance computed; its scheduling delay is that of the prompt.

        BLIS (projectPDMetrics) lets the first token come with the first step here that decodes. After a preemption
        the prompt has been computed here, and E2E counts from there.
        """
        ttft_us, e2e_us, itl_mean_us, own_delay_us, num_tokens = self.latencies(sequence, at)
        delay_us = NEVER if prompt.scheduled_at is None else prompt.scheduled_at - sequence.arrived_at
        if self.itl_from_steps:
            if own_delay_us == NEVER or not sequence.token_runs:
                return NEVER, NEVER, 0.0, delay_us, 0
            first_itl_us = self._steps.run_time(sequence.token_runs[0][0], 1) + self.output_token_time
            ttft_us = own_delay_us + first_itl_us
            if e2e_us != NEVER and sequence.num_preemptions == 0:
                e2e_us -= first_itl_us  # it is the end of the first token as well as the gap to the second
        return ttft_us, e2e_us, itl_mean_us, delay_us, num_tokens

    def latencies_of_dropped(self, sequence: Sequence, prompt: Sequence, at: Micros) -> Latencies:
        """The outcome of a request that was dropped after its prompt had been computed here.

        BLIS gives it the TTFT of its prompt, and an E2E that ends when it is dropped.
        """
        ttft_us, _, _, delay_us, _ = self.latencies(prompt, at)
        return ttft_us, at - sequence.arrived_at, 0.0, delay_us, 0

    def sum_of_steps(self, sequence: Sequence) -> Micros:
        """BLIS's time between the first and the last token of a request: it counts no time between steps.

        That is a step's duration plus one output overhead for each token. Time in which a request got nothing is not
        part of it. With vLLM's scheduling it is what passes between the ends of its steps.
        """
        overheads_us = sequence.num_decoded_tokens * self.output_token_time
        return overheads_us + sum(self._steps.run_time(first, count) for first, count in sequence.token_runs)


def replied_at(simulation: Simulation, finished: Finished) -> Micros:
    """When the last token of a completed request reaches its client.

    How many other tokens its step produced is taken to be how many requests the next step computes. In an API server
    process it waits for the tokens of requests that run longer, not for those of the steps before.
    """
    engine = simulation.instances[finished.sequence.instance]
    num_tokens, num_outputs = finished.sequence.num_output_tokens, engine.last_shape.num_requests
    delay_us = output_delay(engine.config, engine.latency, max(1, num_tokens), num_outputs, is_last=num_tokens > 0)
    if turn_us := engine.latency.output_turn_us:
        number = finished.sequence.running_number
        num_before = sum(each.running and each.running_number < number for each in engine.live.values())
        delay_us += int((num_before + 1) * turn_us)
    return finished.at + delay_us


def token_times(engine: Engine, sequence: Sequence) -> npt.NDArray[np.int64]:
    """When tokens of a completed request reached its client, on the engine's clock, in microseconds.

    One instant per step that brought any, as the tokens of a step travel together.
    """
    assert sequence.first_token_at is not None
    overhead_us = engine.latency.output_token_time
    first_us = sequence.first_token_at + overhead_us
    if engine.config.engine == "blis":
        spans = [engine.steps.span(first, count) for first, count in sequence.token_runs]
        gaps_us = [ends - starts + overhead_us for starts, ends in spans]
        times_us = first_us + np.cumsum(np.concatenate([np.zeros(1, np.int64), *gaps_us]))
    else:
        times_us = np.concatenate([np.array([first_us]), engine.steps.ends_in(sequence.token_runs) + overhead_us])
    # A request without output ends where its first token would have come.
    return times_us[: sequence.num_output_tokens]


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_WAIT = attrgetter("gateway_wait_us", "instance", "prompt_part")
OUTCOMES = tuple(Outcome)
NO_OUTCOME = -1
_CODES: dict[Outcome | None, int] = {None: NO_OUTCOME} | {outcome: code for code, outcome in enumerate(OUTCOMES)}
COMPLETED_CODES = [_CODES[outcome] for outcome in COMPLETED]

_STATE = attrgetter(
    "outcome",
    "instance",
    "num_output_tokens",
    "num_cached_tokens",
    "arrived_at",
    "scheduled_at",
    "first_token_at",
    "output_tokens",
    "prompt_part",
)


class OutcomeColumns(NamedTuple):
    """Outcomes of some requests; latencies as in `Latencies`."""

    outcome: Ints
    """Place in `OUTCOMES`, or `NO_OUTCOME`."""
    ttft_us: Ints
    e2e_us: Ints
    scheduling_delay_us: Ints
    output_tokens: Ints
    instance: Ints
    cached_tokens: Ints
    """Prompt tokens found at the first admission."""
    itl_mean_us: Floats

    @property
    def is_completed(self) -> Bools:
        """Whether each request has completed with a token."""
        found: Bools = np.isin(self.outcome, COMPLETED_CODES) & (self.e2e_us != NEVER)
        return found


def outcome_columns(
    sequences: SequenceOf[Sequence], ended_at: SequenceOf[Micros], views: SequenceOf[ClientView]
) -> OutcomeColumns:
    """Outcomes of at least one request, each of which ended at its instant if it has.

    `views` are by number of instance. Requests that came to no instance have an outcome only.
    """
    outcomes, instances, num_tokens, num_cached, *instants, lengths, prompts = zip(*map(_STATE, sequences), strict=True)
    arrived_at, scheduled_at, first_token_at = map(_or_never, instants)
    outcome, instance, planned = _ints(list(map(_CODES.__getitem__, outcomes))), _ints(instances), _ints(lengths)
    has_token = first_token_at != NEVER
    is_completed = has_token & np.isin(outcome, COMPLETED_CODES)
    has_output = is_completed & (planned > 0)
    ttft_us = first_token_at - arrived_at + np.array([view.output_token_time for view in views])[instance]
    after_us = np.where(has_output, np.array([view.post_decode_time for view in views])[instance], 0)
    between_us = _ints(ended_at) - first_token_at
    _count_steps(between_us, is_completed, sequences, views)
    num_gaps = _num_decoded(sequences, outcome, planned) - 1
    reported = OutcomeColumns(
        outcome,
        ttft_us=np.where(has_token, ttft_us, NEVER),
        e2e_us=np.where(is_completed, ttft_us + between_us + after_us, NEVER),
        scheduling_delay_us=np.where(scheduled_at != NEVER, scheduled_at - arrived_at, NEVER),
        output_tokens=np.where(is_completed, _ints(num_tokens), 0),
        instance=instance,
        cached_tokens=_ints(num_cached),
        itl_mean_us=np.where(has_output, between_us / np.maximum(num_gaps, 1), 0.0),
    )
    for place in [place for place, prompt in enumerate(prompts) if prompt is not None]:
        _report_disaggregated(reported, place, sequences[place], ended_at[place], views)
    return reported


def _or_never(instants: SequenceOf[Micros | None]) -> Ints:
    return _ints([NEVER if each is None else each for each in instants] if None in instants else instants)


def _ints(values: SequenceOf[Any]) -> Ints:
    """Return whole numbers as an array, in two thirds of the time that numpy takes for a tuple."""
    return np.fromiter(values, np.int64, len(values))


def _count_steps(
    between_us: Ints, is_completed: Bools, sequences: SequenceOf[Sequence], views: SequenceOf[ClientView]
) -> None:
    """Where BLIS counts, less than what has passed is between the first and the last token of a completed request."""
    if any(view.itl_from_steps for view in views):
        for place in np.flatnonzero(is_completed).tolist():
            view = views[sequences[place].instance]
            if view.itl_from_steps:
                between_us[place] = view.sum_of_steps(sequences[place])


def _num_decoded(sequences: SequenceOf[Sequence], outcome: Ints, planned: Ints) -> Ints:
    """Return the number of output tokens of each completed request."""
    capped = np.flatnonzero(outcome == _CODES[Outcome.LENGTH_CAPPED]).tolist()
    if not capped:
        return planned
    planned = planned.copy()
    planned[capped] = [sequences[place].num_decoded_tokens for place in capped]
    return planned


def _report_disaggregated(
    reported: OutcomeColumns, place: int, sequence: Sequence, ended_at: Micros, views: SequenceOf[ClientView]
) -> None:
    """The request at `place` had its prompt computed on another instance than its answer."""
    prompt = sequence.prompt_part
    assert prompt is not None
    if sequence.instance == NOWHERE:
        return
    if sequence.outcome is Outcome.DROPPED:
        latencies = views[prompt.instance].latencies_of_dropped(sequence, prompt, ended_at)
    else:
        latencies = views[sequence.instance].latencies_with_remote_prefill(sequence, prompt, ended_at)
    columns = (
        reported.ttft_us,
        reported.e2e_us,
        reported.itl_mean_us,
        reported.scheduling_delay_us,
        reported.output_tokens,
    )
    for column, value in zip(columns, latencies, strict=True):
        column[place] = value


# Percentiles and means of samples: large ones of whole microseconds, and those of one group of requests.

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Pool:
    """Whole-microsecond values with how often each occurs: a large sample kept small."""

    values_us: npt.NDArray[np.int64]
    """Ascending, each once."""
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
        return float(self._total()) / len(self) / 1000

    def _total(self) -> int:
        """Exact sum of all values, whether or not it fits in 64 bits."""
        counts = np.diff(self.cumulative, prepend=0)
        if int(self.values_us[-1]) * len(self) <= _LARGEST:
            return int(np.dot(self.values_us, counts))
        return sum(value * count for value, count in zip(self.values_us.tolist(), counts.tolist(), strict=True))

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
    given = values_us if isinstance(values_us, np.ndarray) else np.fromiter(values_us, np.int64)
    return _pool_of_ascending(np.sort(given))


def pool_of_known(column_us: npt.NDArray[np.int64]) -> Pool:
    """A pool of the values that are not `NEVER`."""
    known = column_us[column_us != NEVER]
    known.sort()
    return _pool_of_ascending(known)


def _pool_of_ascending(ascending: npt.NDArray[np.int64]) -> Pool:
    lasts = _lasts(ascending)
    values_us = ascending[lasts]
    lasts += 1  # in place, as there may be millions
    return Pool(values_us, lasts)


def counted_pool(values_us: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Pool:
    """A pool in which each value occurs `counts` times."""
    order = np.argsort(values_us, kind="stable")
    ascending = values_us[order]
    lasts = _lasts(ascending)
    return Pool(ascending[lasts], np.cumsum(counts[order])[lasts])


def _lasts(ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last place of each value."""
    return np.flatnonzero(np.append(ascending[1:] != ascending[:-1], [True] * bool(len(ascending))))


def merged(pools: SequenceOf[Pool]) -> Pool:
    """All values of several pools."""
    if not pools:
        return pool_of(())
    values_us = np.concatenate([pool.values_us for pool in pools])
    return counted_pool(values_us, np.concatenate([np.diff(pool.cumulative, prepend=0) for pool in pools]))


_MOST_KEPT = 10_000
"""Values of a distribution that are all kept."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values with their mean, in the unit of the values; 0 for figures of an empty one."""

    mean: float
    count: int
    ascending: Floats
    """All values, or those of many that whole percentiles need."""
    ranks: npt.NDArray[np.int64]
    """The rank of each of these values, from 0 on."""

    def __len__(self) -> int:
        return self.count

    def percentile(self, percent: int) -> float:
        """Linear interpolation at rank percent/100*(n-1)."""
        if not len(self):
            return 0.0
        rank = percent / 100 * (len(self) - 1)
        lower = int(rank)
        low, high = self.ascending[np.searchsorted(self.ranks, [lower, min(lower + 1, len(self) - 1)])]
        return float(low + (rank - lower) * (high - low))


def distribution(values: npt.NDArray[np.int64] | Floats) -> Distribution:
    """The distribution of a sample. Its mean adds the values up in their order, which decides its last bit."""
    floats = values.astype(np.float64)
    count = len(floats)
    mean = float(np.cumsum(floats)[-1]) / count if count else 0.0
    floats.sort()
    if count <= _MOST_KEPT:
        return Distribution(mean, count, floats, np.arange(count))
    lowers = {int(percent / 100 * (count - 1)) for percent in range(101)}
    ranks = np.array(sorted(lowers | {min(lower + 1, count - 1) for lower in lowers}))
    return Distribution(mean, count, floats[ranks], ranks)


# Tokens of a run, counted per step: times between tokens, and the wait of each token for others of its step.
#
# A token waits until earlier tokens of its step have been handed to their clients. The wait depends on the number of
# requests with a token in the step, which is known once all of these requests have ended. What has been counted is
# forgotten: the steps of an instance up to then, and the requests whose tokens are all in them.

STEPS_AT_ONCE = 1 << 18
STEPS_LEFT = 256
"""Steps that an engine may still ask for; the log keeps as many."""
_NONE: Ints = np.zeros(0, np.int64)


_PROGRESS = attrgetter("prompt_part", "running_number", "token_runs", "first_token_step", "queued_at", "scheduled_at")


def _serializes(engine: Engine) -> bool:
    """Return whether tokens wait for the others of their step."""
    return engine.latency.output_sequence_time > 0 or engine.latency.output_turn_us > 0


class TokenCounts:
    """Every inter-token latency of every completed request, and the waits of tokens for each other, by instance.

    Costs a few hundred bytes for each request that has tokens in steps that are not counted yet.
    """

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """`engines` may grow."""
        self._engines = engines
        self._of_instance: dict[int, InstanceTokens] = {}
        self._keeps_timed = True
        """Whether the gaps of steps are few enough to be kept with their instants."""
        self._new: list[_Requests]
        """Requests with a token that have ended since tokens were counted."""
        self._instances: list[Ints]
        """The numbers of their instances."""
        self._waited: list[Ints]
        """Instances of requests, and when these joined and left the wait queue; `NEVER` for one that never left it."""
        self._forget_new()

    def add(self, places: SequenceOf[int], sequences: SequenceOf[Sequence], reported: OutcomeColumns) -> None:
        """Note requests that have ended, at least one, by their places in the record."""
        prompts, numbers, runs, *instants = zip(*map(_PROGRESS, sequences), strict=True)
        first_steps, queued_us, left_us = map(_or_never, instants)
        instance, completed, num_runs = reported.instance, reported.is_completed, _ints(list(map(len, runs)))
        stretches = _ints(list(chain.from_iterable(chain.from_iterable(runs)))).reshape(-1, 2)
        # A request without a first token here has it from another instance.
        is_here, has_more = first_steps != NEVER, num_runs > 0
        first_steps = np.maximum(first_steps, 0)
        last_steps = first_steps.copy()
        last_steps[has_more] = stretches.sum(axis=1)[np.cumsum(num_runs)[has_more] - 1] - 1
        serializes = np.array([_serializes(engine) for engine in self._engines])[instance]
        kept = (instance != NOWHERE) & (completed | (is_here & serializes))
        requests = _Requests(
            np.where(is_here, places, -1),
            _ints(numbers),
            first_steps,
            last_steps,
            completed,
            np.zeros(len(places), np.int64),
            np.repeat(np.arange(len(places)), num_runs),
            stretches[:, 0],
            stretches[:, 1],
        )
        self._new.append(requests.those(kept))
        self._instances.append(instance[kept])
        has_waited = (instance != NOWHERE) & (queued_us != NEVER) & np.array([each is None for each in prompts])
        self._waited.append(np.stack([instance, queued_us, left_us])[:, has_waited])
        for number in set(instance.tolist()) - self._of_instance.keys() - {NOWHERE}:
            self._of_instance[number] = InstanceTokens(self._engines[number])

    def count(self, before: Micros | None) -> "list[Waits]":
        """Count the tokens of steps that ended before an instant, where all other requests arrived later, and forget
        these steps. None counts all, after which nothing may be added.

        Returns the waits of tokens that are known now.
        """
        instance, waited = np.concatenate(self._instances), np.concatenate(self._waited, axis=1)
        order = np.argsort(instance, kind="stable")
        instance, requests = instance[order], _joined(self._new).in_order(order)
        waited = waited[:, np.argsort(waited[0], kind="stable")]
        self._forget_new()
        found = []
        for number, tokens in self._of_instance.items():
            tokens.add(
                requests.part(*np.searchsorted(instance, [number, number + 1]).tolist()),
                waited[1:, slice(*np.searchsorted(waited[0], [number, number + 1]).tolist())],
            )
            found.append(tokens.count(before))
        self._keeps_timed &= sum(tokens.num_timed for tokens in self._of_instance.values()) <= MOST_TIMED_GAPS
        if not self._keeps_timed:
            for tokens in self._of_instance.values():
                tokens.timed = None
        return found

    def _forget_new(self) -> None:
        self._new, self._instances, self._waited = [_NO_REQUESTS], [_NONE], [np.zeros((3, 0), np.int64)]

    def gaps(self, instance: int | None = None) -> Pool:
        """All gaps counted so far, or those of one instance."""
        if instance is not None:
            tokens = self._of_instance.get(instance)
            return merged([]) if tokens is None else tokens.gaps
        return merged([tokens.gaps for _, tokens in sorted(self._of_instance.items())])

    def timed_gaps(self) -> "TimedGaps | None":
        """Return all gaps of completed requests with their ends; None where they are too many to be kept."""
        parts = [part for _, tokens in sorted(self._of_instance.items()) for part in tokens.timed or ()]
        return TimedGaps._make(map(np.concatenate, zip(*parts, strict=True))) if parts else None

    def busy_us(self, instance: int, since: Micros, until: Micros) -> Micros:
        """Return for how long of a stretch of time a step of an instance was under way."""
        tokens = self._of_instance.get(instance) or InstanceTokens(self._engines[instance])
        begins, ends = tokens.busy_spans()
        return int(np.clip(np.minimum(ends, until) - np.maximum(begins, since), 0, None).sum())

    def steps_waited(self, instance: int) -> int:
        """Steps that began on an instance while a request waited there, for all of its requests together.

        Requests with a prompt computed elsewhere are left out.
        """
        tokens = self._of_instance.get(instance)
        return 0 if tokens is None else tokens.steps_waited()


class Waits(NamedTuple):
    """How long first and last tokens of requests wait for other tokens, by the places of the requests."""

    places: Ints
    first_us: Ints
    last_us: Ints


_NO_WAITS = Waits(_NONE, _NONE, _NONE)
MOST_TIMED_GAPS = 1 << 18
"""Steps of a run whose gaps are kept with their instants."""


class TimedGaps(NamedTuple):
    """Gaps between tokens with the instants of their ends, in microseconds, and how many requests had each."""

    ends_us: Ints
    gaps_us: Ints
    counts: Ints


class _Requests(NamedTuple):
    """Ended requests with a token, in columns."""

    places: Ints
    """Places in the record; -1 for a request whose first token came from elsewhere."""
    numbers: Ints
    """Running numbers."""
    first_steps: Ints
    last_steps: Ints
    completed: Bools
    first_us: Ints
    """Waits of first tokens, where these are known."""
    owners: Ints
    """For each stretch of steps in which a request had a token after the first, the index of the request."""
    firsts: Ints
    counts: Ints

    def those(self, kept: Bools) -> "_Requests":
        """Return some of the requests."""
        has = kept[self.owners]
        index = np.cumsum(kept) - 1
        columns = [column[kept] for column in self[:6]]
        return _Requests._make([*columns, index[self.owners[has]], self.firsts[has], self.counts[has]])

    def in_order(self, order: Ints) -> "_Requests":
        """Return the requests in another order."""
        place_of = np.empty_like(order)
        place_of[order] = np.arange(len(order))
        owners = place_of[self.owners]
        its = np.argsort(owners, kind="stable")
        columns = [column[order] for column in self[:6]]
        return _Requests._make([*columns, owners[its], self.firsts[its], self.counts[its]])

    def part(self, begin: int, end: int) -> "_Requests":
        """Return a stretch of the requests, whose stretches of steps are in their order."""
        first, last = np.searchsorted(self.owners, [begin, end]).tolist()
        columns = [column[begin:end] for column in self[:6]]
        owners = self.owners[first:last] - begin
        return _Requests._make([*columns, owners, self.firsts[first:last], self.counts[first:last]])


def _joined(parts: "SequenceOf[_Requests]") -> "_Requests":
    """Return the requests of all parts, of which there is at least one."""
    firsts = np.cumsum([0, *(len(part.places) for part in parts[:-1])])
    joined = _Requests._make(map(np.concatenate, zip(*parts, strict=True)))
    return joined._replace(owners=joined.owners + np.repeat(firsts, [len(part.owners) for part in parts]))


_NO_REQUESTS = _Requests(_NONE, _NONE, _NONE, _NONE, np.zeros(0, np.bool_), _NONE, _NONE, _NONE, _NONE)


class InstanceTokens:
    """The tokens of one instance."""

    def __init__(self, engine: Engine) -> None:
        self._gaps = [pool_of(_NONE)]
        """Parts of all gaps, the first of which has most of the values."""
        self.timed: list[TimedGaps] | None = []
        """The gaps of each step; None where they are too many."""
        self.num_timed = 0
        self._engine = engine
        self._serializes = _serializes(engine)
        self._new: list[_Requests] = []
        """Requests with a token that have ended since tokens were counted."""
        self._open = _NO_REQUESTS
        """Requests with tokens in steps that are not counted."""
        self._waited: list[Ints] = []
        """When requests joined and left the wait queue."""
        self._num_waited = self._num_staying = self._num_before = 0
        """Steps begun while requests waited; requests that never left the queue, and steps begun before they came."""
        self._next = 0
        """The first step that is not counted."""
        self._free_at = 0.0
        """When the tokens counted so far have been handed out."""
        self._spans: tuple[Ints, Ints] = _NONE, _NONE
        """Stretches of steps that are forgotten."""

    @property
    def gaps(self) -> Pool:
        """All gaps counted so far."""
        self._gaps = [merged(self._gaps)]
        return self._gaps[0]

    def add(self, new: _Requests, waited: Ints) -> None:
        """Note requests that have ended, and when requests joined and left the wait queue."""
        self._new.append(new)
        self._waited.append(waited)

    def count(self, before: Micros | None) -> Waits:
        """Count the tokens of steps that ended before an instant, or of all. Returns the waits known now."""
        steps = self._engine.steps
        until = len(steps)
        if before is not None:
            _, ends = steps.span(self._next, until - self._next)
            until = min(self._next + int(np.searchsorted(ends, before)), until - STEPS_LEFT)
            if until <= self._next:
                return _NO_WAITS
        self._count_waits()
        new = _joined([_NO_REQUESTS, *self._new])
        self._new.clear()
        requests = _joined([self._open, new])
        waits = self._waits_of(requests, until) if self._serializes else _NO_WAITS
        self._count_gaps(new, requests, until)
        self._open = requests.those(requests.last_steps >= until)
        self._next = until
        if before is not None:
            # The end of the step before the next one is where its gap begins.
            self._spans = self._busy_until(until - 1)
            steps.forget(until - 1)
        return waits

    def busy_spans(self) -> tuple[Ints, Ints]:
        """Starts and ends of the stretches in which steps were under way."""
        return self._busy_until(len(self._engine.steps))

    def steps_waited(self) -> int:
        """Steps begun while requests waited, for all requests together."""
        self._count_waits()
        return self._num_waited + self._num_staying * len(self._engine.steps) - self._num_before

    def _count_waits(self) -> None:
        """Count the steps that began while requests waited, all of them since the last forgotten step."""
        if not self._waited:
            return
        steps = self._engine.steps
        starts, _ = steps.span(steps.num_forgotten, len(steps))
        waited = np.concatenate(self._waited, axis=1)
        has_left = waited[1] != NEVER
        begins, ends = np.searchsorted(starts, waited[:, has_left])
        self._num_waited += int(np.maximum(ends - begins, 0).sum())
        staying = waited[0, ~has_left]
        self._num_staying += len(staying)
        self._num_before += int(np.searchsorted(starts, staying).sum()) + len(staying) * steps.num_forgotten
        self._waited.clear()

    def _count_gaps(self, new: _Requests, requests: _Requests, until: int) -> None:
        """Add the gaps of steps up to one, which is excluded, and those before the stretches of new requests."""
        counts_own_steps = self._engine.config.engine == "blis"
        parts = self._gaps
        if not counts_own_steps:
            ends_us, gaps_us = self._pauses(new)
            self._keep_timed(ends_us, gaps_us, np.ones_like(gaps_us))
            parts.append(pool_of(gaps_us))
        is_its = requests.completed[requests.owners]
        firsts, stops = requests.firsts[is_its], (requests.firsts + requests.counts)[is_its]
        # The gap of the first token of a stretch may be longer than a step. BLIS counts its own step only.
        firsts = firsts if counts_own_steps else firsts + 1
        for begin in range(self._next, until, STEPS_AT_ONCE):
            size = min(STEPS_AT_ONCE, until - begin)
            # As many stretches are under way as have begun and have not stopped.
            num = np.cumsum(_num_at(firsts - begin, size) - _num_at(stops - begin, size))
            has, gaps_us = num > 0, self._gaps_us(begin, size)
            self._keep_timed(self._engine.steps.span(begin, size)[1][has], gaps_us[has], num[has])
            parts.append(counted_pool(gaps_us[has], num[has]))
        if sum(len(part.values_us) for part in parts) > 2 * len(parts[0].values_us):  # as adding a few costs as much
            self._gaps = [merged(parts)]

    def _keep_timed(self, ends_us: Ints, gaps_us: Ints, counts: Ints) -> None:
        self.num_timed += len(ends_us)
        if self.timed is not None:
            self.timed.append(TimedGaps(ends_us, gaps_us, counts))

    def _pauses(self, new: _Requests) -> tuple[Ints, Ints]:
        """Return the ends and lengths of the gaps before the first token of each stretch of completed requests."""
        steps = self._engine.steps
        is_first = np.diff(new.owners, prepend=-1) > 0
        befores = np.where(is_first, new.first_steps[new.owners], np.roll(new.firsts + new.counts, 1) - 1)
        is_its = new.completed[new.owners]
        _, ends_us = steps.span(steps.num_forgotten, len(steps))
        firsts, befores = new.firsts[is_its] - steps.num_forgotten, befores[is_its] - steps.num_forgotten
        return ends_us[firsts], ends_us[firsts] - ends_us[befores]

    def _gaps_us(self, first: int, count: int) -> Ints:
        """The time between the token of a step and the one before it, for `count` steps."""
        steps = self._engine.steps
        starts_us, ends_us = steps.span(first, count)
        if self._engine.config.engine == "blis":
            return ends_us - starts_us + self._engine.latency.output_token_time
        return np.diff(ends_us, prepend=steps.end(first - 1) if first else 0)

    def _waits_of(self, requests: _Requests, until: int) -> Waits:
        """Return the waits of requests whose last token is in a counted step, and keep those of first tokens."""
        latency, first = self._engine.latency, self._next
        if len(requests.places) and requests.places.min() < 0:
            requests = requests.those(requests.places >= 0)
        begun = np.concatenate([requests.first_steps, requests.firsts])
        stopped = np.concatenate([requests.first_steps + 1, requests.firsts + requests.counts])
        size = until - first
        num_outputs = np.cumsum(_num_at(begun - first, size) - _num_at(stopped - first, size))
        waits_us = num_outputs * latency.output_sequence_time
        at_first, at_last = requests.first_steps - first, requests.last_steps - first
        has_first, has_last = (at_first >= 0) & (at_first < size), at_last < size
        first_us, last_us = waits_us[at_first[has_first]], waits_us[at_last[has_last]]
        if turn_us := latency.output_turn_us:
            forgotten = self._engine.steps.num_forgotten
            instants = self._engine.steps.output_instants()[first - forgotten : until - forgotten]
            queued_us = output_waits(instants, num_outputs, turn_us, self._free_at)
            if size:
                self._free_at = float(instants[-1] + queued_us[-1] + num_outputs[-1] * turn_us)
            first_turns, last_turns = _turns(requests)
            first_us = first_us + (queued_us[at_first[has_first]] + first_turns[has_first] * turn_us).astype(np.int64)
            last_us = last_us + (queued_us[at_last[has_last]] + last_turns[has_last] * turn_us).astype(np.int64)
        requests.first_us[has_first] = first_us
        return Waits(requests.places[has_last], requests.first_us[has_last], last_us)

    def _busy_until(self, until: int) -> tuple[Ints, Ints]:
        """Return the stretches of steps before one; of steps that overlap each counts from the last end on."""
        steps, (begins, stops) = self._engine.steps, self._spans
        starts, ends = steps.span(steps.num_forgotten, until - steps.num_forgotten)
        if not len(ends):
            return self._spans
        starts = np.maximum(starts, np.concatenate([stops[-1:] if len(stops) else starts[:1], ends[:-1]]))
        begins, stops = np.concatenate([begins, starts]), np.concatenate([stops, ends])
        is_apart = begins[1:] != stops[:-1]
        return begins[np.concatenate([[True], is_apart])], stops[np.concatenate([is_apart, [True]])]


def _num_at(steps: Ints, size: int) -> Ints:
    """Return how often each step below `size` occurs; those below 0 count as 0."""
    return np.bincount(np.clip(steps, 0, size), minlength=size)[:size]


def _turns(requests: _Requests) -> tuple[Ints, Ints]:
    """Return for each request the turns of its first and of its last token in their steps."""
    first_steps, last_steps, numbers = requests.first_steps, requests.last_steps, requests.numbers
    if requests.counts.sum() + len(first_steps) == (last_steps - first_steps + 1).sum():
        return turns_in(first_steps, last_steps, numbers)
    firsts = np.concatenate([first_steps, requests.firsts])
    counts = np.concatenate([np.ones_like(first_steps), requests.counts])
    return turns_with_gaps(
        first_steps, last_steps, numbers, firsts, counts, np.concatenate([numbers, numbers[requests.owners]])
    )


def turns_in(first_steps: Ints, last_steps: Ints, running_numbers: Ints) -> tuple[Ints, Ints]:
    """Return, for each request, when its turn comes among the tokens of its first and of its last step, from 1 on.

    Requests have a token in every step between, and stand in the batch in the order of their running numbers. Those of
    before a preemption count as the last ones.
    """
    order = np.argsort(running_numbers, kind="stable")
    firsts, lasts = first_steps[order], last_steps[order]
    num_earlier = np.arange(len(order))
    if (np.diff(firsts) >= 0).all():  # as mostly: whichever came earlier has a token by now
        at_first = num_earlier - np.sort(lasts).searchsorted(firsts)
        at_last = num_earlier - num_below_before(lasts, lasts)
    else:
        at_first = num_below_before(firsts, firsts + 1) - num_below_before(lasts, firsts)
        at_last = num_below_before(firsts, lasts + 1) - num_below_before(lasts, lasts)
    first_turns, last_turns = np.empty_like(num_earlier), np.empty_like(num_earlier)
    first_turns[order], last_turns[order] = at_first + 1, at_last + 1
    return first_turns, last_turns


def turns_with_gaps(
    first_steps: Ints, last_steps: Ints, running_numbers: Ints, run_firsts: Ints, run_counts: Ints, run_numbers: Ints
) -> tuple[Ints, Ints]:
    """Return what `turns_in` returns where requests lack tokens in steps between: with pipeline stages, preemptions.

    The last three arrays have a place for each stretch of steps with a token. They hold its first step, its length and
    the running number of its request. Cost: O(n log n) in the tokens of steps with a first or last token of a request.
    """
    asked = np.unique(np.concatenate((first_steps, last_steps)))
    begins, ends = asked.searchsorted(run_firsts), asked.searchsorted(run_firsts + run_counts)
    lengths = ends - begins
    places = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    lowest = running_numbers.min()
    span = running_numbers.max() - lowest + 1
    keys = np.sort(places * span + np.repeat(run_numbers - lowest, lengths))

    def turns(steps: Ints) -> Ints:
        begin = asked.searchsorted(steps) * span
        found: Ints = keys.searchsorted(begin + running_numbers - lowest) - keys.searchsorted(begin) + 1
        return found

    return turns(first_steps), turns(last_steps)


def num_below_before(values: Ints, limits: Ints) -> Ints:
    """Return for each of `limits`, which are as many, how many of the values before its place are below it.

    Cost: O(n log^2 n).
    """
    size = 1 << max(0, len(values) - 1).bit_length()
    if not len(values):
        return np.zeros(0, np.int64)
    lowest, highest = min(values.min(), limits.min()), max(values.max(), limits.max())
    span = int(highest - lowest) + 2
    sources, queries = np.full(size, span - 1, np.int64), np.zeros(size, np.int64)
    sources[: len(values)], queries[: len(values)] = values - lowest, limits - lowest
    counts = np.zeros(size, np.int64)
    width = 1
    while width < size:
        left, right = sources.reshape(-1, 2, width)[:, 0], queries.reshape(-1, 2, width)[:, 1]
        rows = np.arange(len(left))[:, None]
        below = (np.sort(left, axis=1) + rows * span).ravel().searchsorted((right + rows * span).ravel())
        counts.reshape(-1, 2, width)[:, 1] += below.reshape(-1, width) - rows * width
        width *= 2
    return counts[: len(values)]


# The outcome of every request of a run, in columns that are filled as requests end; no other state is kept.

OnTokens = Callable[[int, Ints], None]
"""Takes a completed request's number and when its tokens reached the client, step by step, in microseconds."""


REPORT_BATCH_SIZE = 1024
"""How many requests have ended before their latencies are worked out."""
COUNT_BATCH_SIZE = 1 << 15
"""How many requests have ended before their tokens are counted, and the steps of these forgotten. In shorter runs all
tokens are counted at the end."""


class RequestRecord(NamedTuple):
    """One request that has arrived, with its latencies in microseconds; None for what never happened."""

    id: str
    number: int
    """The id of the request in results and traces."""
    row: Origin
    arrived_at: Micros
    input_tokens: int
    """Tokens of the whole prompt, shared prefixes included."""
    planned_output_tokens: int
    outcome: Outcome | None
    """None for a request that had not ended at the horizon."""
    ttft_us: Micros | None
    e2e_us: Micros | None
    itl_mean_us: float
    scheduling_delay_us: Micros | None
    output_tokens: int
    instance: int
    """The number of the instance that served the request; -1 for none."""
    gateway_wait_us: Micros
    """The wait in the gateway's queue."""

    @property
    def is_completed(self) -> bool:
        return self.outcome in COMPLETED


def _declared_tokens(end: Finished) -> int:
    return end.sequence.input_tokens + end.sequence.max_output_tokens


class Record:
    """One entry per request that has arrived, in order of arrival: a few numbers each, whatever its tokens.

    The driver calls `arrived` for each arrival and `note` for the events, and closes the record at the end. Entries and
    columns can be read from then on.
    """

    def __init__(
        self, simulation: Simulation, on_tokens: OnTokens | None = None, given: SequenceOf[Origin] | None = None
    ) -> None:
        """`given` are the origins of all requests in order of arrival, if they are known before the run. The ids are
        those of packed rows, else `request_` and their places. Neither is kept here then."""
        self._rows = Origins()
        self._ids: array[int] | list[str] | None = None
        """Ids of the requests so far, or their numbers, where these are not `request_` and their places."""
        self.rows: SequenceOf[Origin] = self._rows
        """Origin of each request."""
        self.ids: SequenceOf[str] = NumberedIds(0)
        self.tokens = TokenCounts(simulation.instances)
        self._given = given
        self._num_arrived = self._num_uncounted = 0
        self._forgets_steps = True
        """Whether counted steps are forgotten; those of requests in two parts are looked at again in the end."""
        self._simulation = simulation
        self._on_tokens = on_tokens
        self._live: dict[Sequence, int] = {}
        """Sequences that are not in the columns yet, and their positions."""
        self._ended: list[Finished] = []
        """Rows of requests that have ended."""
        self._views: list[ClientView] = []
        """By number of instance."""
        self._arrived_at = array("q")
        self._input_tokens = array("i")
        self._planned_output_tokens = array("i")
        self._outcome = array("b")
        self._ttft_us = array("q")
        self._e2e_us = array("q")
        self._itl_mean_us = array("d")
        self._scheduling_delay_us = array("q")
        self._output_tokens = array("i")
        self._instance = array("i")
        self._cached_tokens = array("i")
        self._gateway_wait_us: dict[int, Micros] = {}
        """Waits by place, of requests that waited."""
        self.longest_refused: Finished | None = None
        """The end of the longest request that was refused because it can never be served."""

    def __len__(self) -> int:
        return self._num_arrived

    def __iter__(self) -> Iterator[RequestRecord]:
        return map(self._entry, range(len(self)), self.rows)

    def __getitem__(self, place: int) -> RequestRecord:
        return self._entry(place, self.rows[place])

    def _entry(self, place: int, row: Origin) -> RequestRecord:
        outcome = self._outcome[place]
        return RequestRecord(
            id=self.ids[place],
            number=row.request_id if isinstance(row, TraceRow) else place,
            row=row,
            arrived_at=self._arrived_at[place],
            input_tokens=self._input_tokens[place],
            planned_output_tokens=self._planned_output_tokens[place],
            outcome=None if outcome == NO_OUTCOME else OUTCOMES[outcome],
            ttft_us=_known(self._ttft_us[place]),
            e2e_us=_known(self._e2e_us[place]),
            itl_mean_us=self._itl_mean_us[place],
            scheduling_delay_us=_known(self._scheduling_delay_us[place]),
            output_tokens=self._output_tokens[place],
            instance=self._instance[place],
            gateway_wait_us=self._gateway_wait_us.get(place, 0),
        )

    def number(self, place: int) -> int:
        """Return the id of a request in results and traces: that of its trace, else its position among all arrivals."""
        if isinstance(self._given, PackedRows):
            return int(self._given.value("request_id", place))
        if self._given is not None:
            return place
        row = self.rows[place]
        return row.request_id if isinstance(row, TraceRow) else place

    @property
    def numbers(self) -> Ints:
        """The ids of all requests in results and traces."""
        if isinstance(self.rows, PackedRows) and self._given is not None:
            return self.rows.ints("request_id")
        if self._given is not None:
            return np.arange(len(self))
        numbers = (row.request_id if isinstance(row, TraceRow) else place for place, row in enumerate(self.rows))
        return np.fromiter(numbers, np.int64, len(self))

    def entries(self, places: Ints) -> Iterator[RequestRecord]:
        """Yield the entries at these places, in their order."""
        if not (places[1:] > places[:-1]).all():
            yield from map(self.__getitem__, places.tolist())
            return
        is_one = np.zeros(len(self), np.bool_)
        is_one[places] = True
        yield from compress(self, is_one.data)

    def arrived(self, sequences: SequenceOf[Sequence], rows: Iterable[Origin]) -> None:
        """Requests, made from as many rows, have been handed to the simulation in this order. Rows that are given are
        not read."""
        requests = [sequence.request for sequence in sequences]
        self._live.update(zip(sequences, range(len(self), len(self) + len(sequences)), strict=True))
        self._num_arrived += len(sequences)
        if self._given is None:
            self._rows.extend(rows)
            self._add_ids([request.id for request in requests])
        self._arrived_at.fromlist([sequence.arrived_at for sequence in sequences])
        self._input_tokens.fromlist([request.input_tokens for request in requests])
        self._planned_output_tokens.fromlist([request.output_tokens for request in requests])

    def _add_ids(self, ids: list[str]) -> None:
        if self._ids is None:
            first = self._num_arrived - len(ids)
            if ids == NumberedIds(self._num_arrived)[first:]:
                return
            self._ids = array("q", range(first))
        if isinstance(self._ids, array):
            numbers = numbers_of(ids)
            if numbers is not None:
                self._ids.extend(numbers)
                return
            self._ids = [f"request_{number}" for number in self._ids]
        self._ids += ids

    def note(self, events: Iterable[Event]) -> list[Finished]:
        """Take in events of the simulation. Returns the events that end requests."""
        ended = [event for event in events if isinstance(event, Finished)]
        self._ended += ended
        if len(self._ended) >= REPORT_BATCH_SIZE:
            self._num_uncounted += len(self._ended)
            self._report_ended()
            if self._forgets_steps and self._num_uncounted >= COUNT_BATCH_SIZE:
                self._count_tokens()
        return ended

    def close(self) -> None:
        """Finish the record: take in unfinished requests."""
        self._report_ended()
        self._report(list(self._live), [self._simulation.now or 0] * len(self._live))
        self._grow()
        self._wait_for_turns(self.tokens.count(None))
        if self._given is not None:
            self.rows = self._given[: len(self)]
        if isinstance(self.rows, PackedRows) and self._given is not None:
            self.ids = RequestIds.of(self.rows)
        elif self._ids is None:
            self.ids = NumberedIds(len(self))
        else:
            self.ids = RequestIds(np.array(self._ids)) if isinstance(self._ids, array) else self._ids

    def _count_tokens(self) -> None:
        """Count the tokens of steps that ended before any unfinished request arrived."""
        self._num_uncounted = 0
        oldest = next(iter(self._live), None)
        before = oldest.arrived_at if oldest is not None else self._simulation.now or 0
        self._wait_for_turns(self.tokens.count(before))

    def with_times(
        self, arrived_at: Ints, ttft_us: Ints, e2e_us: Ints, itl_mean_us: Floats, scheduling_delay_us: Ints
    ) -> "Record":
        """Return the record with other times, in this order of requests; `NEVER` for events that did not happen."""
        other = copy(self)
        other._arrived_at = array("q", arrived_at.tolist())
        other._ttft_us = array("q", ttft_us.tolist())
        other._e2e_us = array("q", e2e_us.tolist())
        other._itl_mean_us = array("d", itl_mean_us.tolist())
        other._scheduling_delay_us = array("q", scheduling_delay_us.tolist())
        return other

    def _wait_for_turns(self, waits: list[Waits]) -> None:
        """Add the time that tokens wait for other tokens of their step."""
        for places, first_us, last_us in waits:
            if not len(places):
                continue
            for column, added_us in ((self.ttft_us, first_us), (self.e2e_us, last_us)):
                known = column[places] != NEVER
                column[places[known]] += added_us[known]
            known = self.e2e_us[places] != NEVER
            gaps = np.maximum(self.tokens_at(places) - 1, 1)
            self.itl_mean_us[places[known]] += ((last_us - first_us) / gaps)[known]

    @property
    def by_id(self) -> Ints:
        """The places of all requests in the order of their ids as text, in which the original adds up."""
        if isinstance(self.ids, NumberedIds | RequestIds):
            return self.ids.order()
        return np.array(sorted(range(len(self)), key=self.ids.__getitem__), np.int64)

    @property
    def arrived_at(self) -> Ints:
        return np.frombuffer(self._arrived_at, np.int64)

    @property
    def input_tokens(self) -> Ints:
        return np.array(self._input_tokens, np.int64)

    @property
    def planned_output_tokens(self) -> Ints:
        return np.array(self._planned_output_tokens, np.int64)

    @property
    def output_tokens(self) -> Ints:
        """Tokens of each completed request; 0 for the others."""
        return np.array(self._output_tokens, np.int64)

    @property
    def outcome(self) -> Ints:
        """Place of each outcome in `OUTCOMES`, or `NO_OUTCOME`."""
        return np.array(self._outcome, np.int64)

    def has_outcome(self, *codes: int) -> Bools:
        """Return which requests have one of these outcomes, named as in `outcome`."""
        return np.isin(np.frombuffer(self._outcome, np.int8), codes)

    def tokens_at(self, places: Ints) -> Ints:
        """Return the output tokens of the requests at these places; 0 for those that have not completed."""
        return np.frombuffer(self._output_tokens, np.int32)[places].astype(np.int64)

    def count(self, outcome: Outcome) -> int:
        """Return how many requests ended in this way."""
        return self._outcome.count(OUTCOMES.index(outcome))

    @property
    def is_completed(self) -> Bools:
        return self.has_outcome(*COMPLETED_CODES)

    @property
    def ttft_us(self) -> Ints:
        return np.frombuffer(self._ttft_us, np.int64)

    @property
    def e2e_us(self) -> Ints:
        """E2E of each request that has one: those that completed, and in BLIS those dropped after their prompt."""
        return np.frombuffer(self._e2e_us, np.int64)

    @property
    def itl_mean_us(self) -> Floats:
        return np.frombuffer(self._itl_mean_us, np.float64)

    @property
    def scheduling_delay_us(self) -> Ints:
        return np.frombuffer(self._scheduling_delay_us, np.int64)

    @property
    def instance(self) -> Ints:
        return np.array(self._instance, np.int64)

    @property
    def cached_tokens(self) -> Ints:
        """Prompt tokens that each request found in the prefix cache when it was first admitted."""
        return np.array(self._cached_tokens, np.int64)

    def _report_ended(self) -> None:
        ended, self._ended = self._ended, []
        if refused := [event for event in ended if event.outcome is Outcome.DROPPED]:
            known = [] if self.longest_refused is None else [self.longest_refused]
            self.longest_refused = max(known + refused, key=_declared_tokens)
        self._report([event.sequence for event in ended], [event.at for event in ended])

    def _report(self, sequences: list[Sequence], ended_at: list[Micros]) -> None:
        """Fill the columns for requests, each of which ended at its instant if it has ended."""
        if not sequences:
            return
        views, engines = self._views, self._simulation.instances
        views.extend(map(ClientView, engines[len(views) :]))
        places = list(map(self._live.pop, sequences))
        reported = outcome_columns(sequences, ended_at, views)
        self._grow()
        for column, values in (
            (np.frombuffer(self._outcome, np.int8), reported.outcome),
            (self.ttft_us, reported.ttft_us),
            (self.e2e_us, reported.e2e_us),
            (self.itl_mean_us, reported.itl_mean_us),
            (self.scheduling_delay_us, reported.scheduling_delay_us),
            (np.frombuffer(self._output_tokens, np.int32), reported.output_tokens),
            (np.frombuffer(self._instance, np.int32), reported.instance),
            (np.frombuffer(self._cached_tokens, np.int32), reported.cached_tokens),
        ):
            column[places] = values
        self.tokens.add(places, sequences, reported)
        for place, (wait_us, instance, prompt) in zip(places, map(_WAIT, sequences), strict=True):
            if wait_us and instance != NOWHERE:
                self._gateway_wait_us[place] = wait_us
            if prompt is not None:
                self._forgets_steps = False
        if self._on_tokens is not None:
            for each in np.flatnonzero(reported.is_completed).tolist():
                engine = self._views[sequences[each].instance].engine
                self._on_tokens(self.number(places[each]), token_times(engine, sequences[each]))

    def _grow(self) -> None:
        """Give the columns an empty entry for each request that has arrived."""
        missing = len(self) - len(self._outcome)
        for columns, empty in (
            ((self._ttft_us, self._e2e_us, self._scheduling_delay_us, self._outcome, self._instance), NEVER),
            ((self._itl_mean_us, self._output_tokens, self._cached_tokens), 0),
        ):
            for column in columns:
                column.frombytes(np.full(missing, empty, column.typecode).tobytes())


class Origins(SequenceOf[Origin]):
    """The origins of requests, in this order, kept by columns in chunks of one kind."""

    def __init__(self) -> None:
        self._chunks: list[SequenceOf[Origin]] = []
        self._latest: list[Origin] = []

    def extend(self, origins: Iterable[Origin]) -> None:
        """Add origins behind the others."""
        self._latest += origins
        while len(self._latest) >= ROWS_AT_ONCE:
            chunk, self._latest = self._latest[:ROWS_AT_ONCE], self._latest[ROWS_AT_ONCE:]
            kinds = set(map(type, chunk))
            self._chunks.append(PackedRows.of(kinds.pop(), chunk) if len(kinds) == 1 else chunk)

    def __len__(self) -> int:
        return len(self._chunks) * ROWS_AT_ONCE + len(self._latest)

    @overload
    def __getitem__(self, place: int) -> Origin: ...

    @overload
    def __getitem__(self, place: slice) -> list[Origin]: ...

    def __getitem__(self, place: int | slice) -> Origin | list[Origin]:
        if isinstance(place, slice):
            return list(self)[place]
        number, within = divmod(range(len(self))[place], ROWS_AT_ONCE)
        return self._latest[within] if number == len(self._chunks) else self._chunks[number][within]

    def __iter__(self) -> Iterator[Origin]:
        return chain(chain.from_iterable(self._chunks), self._latest)

    def values(self, name: str) -> Iterator[Any]:
        """Yield the values of a field that all of the requests have."""
        return chain.from_iterable(values_of(each, name) for each in (*self._chunks, self._latest))

    def has_any(self, name: str) -> bool:
        """Return whether a request has a field of this name with a value in it."""
        return any(has_any(each, name) for each in (*self._chunks, self._latest))


def values_of(rows: Iterable[Origin], name: str) -> Iterator[Any]:
    """Yield the values of a field of requests, which need not be made for that where they are kept by columns."""
    return rows.values(name) if isinstance(rows, PackedRows | Origins) else map(attrgetter(name), rows)


def has_any(rows: Iterable[Origin], name: str) -> bool:
    """Return whether a request has a field of this name with a value in it."""
    if isinstance(rows, PackedRows | Origins):
        return rows.has_any(name)
    return any(getattr(row, name, None) for row in rows)


class NumberedIds(SequenceOf[str]):
    """The ids of requests that are numbered from 0 on."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        numbers = range(self._count)[place]
        return f"request_{numbers}" if isinstance(numbers, int) else [f"request_{number}" for number in numbers]

    def order(self) -> Ints:
        """The places of all ids in the order of their text."""
        if self._count < 2:
            return np.arange(self._count)
        ids = np.arange(self._count)
        num_digits = np.searchsorted(10 ** np.arange(1, 10), ids, side="right")
        # As text 1 comes before 10, 10 before 100 and all of them before 2.
        longest = int(num_digits[-1])
        order: Ints = np.argsort(ids * 10 ** (longest - num_digits) * 10 + num_digits)
        return order


def _known(value: int) -> int | None:
    return None if value == NEVER else value
