"""One recording: requests to simulate, latencies that their client measured, and steps derived from token times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, RecentPrompts
from blis_sim.engine.config import EngineConfig, refusal_reason
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Scheduled
from blis_sim.engine.sequence import Sequence as RunningSequence
from blis_sim.engine.simulation import run_virtual
from calibrate.calibration import SAME_INSTANT_SHARE, content_chunks, first_token_us
from calibrate.compare import OK_STATUSES, CalibrateError, is_single_chunk
from calibrate.steps import MeasuredSteps, measured_steps
from replay.arrivals import Arrival, arrivals_of
from replay.simulation.record import Record
from replay.simulation.simulate import reissued, simulate, simulate_reissued
from traces import Trace, TraceRow
from traces.steps import Step

# The steps of a server, derived from the token times of its clients, and stretches of them around prompts.
#
# Only a stretch is as long as what it held makes it. Single steps borrow time from each other: tokens are handed out
# late while the server takes in a prompt, and steps right after one are slower.

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


MIN_STEPS_WITH_TURNS = 100
"""With fewer steps that brought several tokens, the time between these is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps in order: those whose tokens reached the clients.

    A prompt stands in the step that brought its first token. Steps are `plain` if the columns hold all that was in
    them, and if they began when the one before ended.
    """

    ends_us: Floats
    decodes: Ints
    context_tokens: Ints
    """Context tokens of all decoding requests before the step."""
    plain: Bools
    prompt_steps: Ints
    """Tokens of each prompt, ascending."""
    prompt_requests: Ints
    """The request of each prompt, by the place of its arrival."""
    prompt_tokens: Ints
    turn_us: float = 0.0
    """Time from one token of a step to the next: the API server process hands them out in turn. 0 if unknown."""


def steps_of(arrivals: Sequence[Arrival], chunks: Mapping[int, Sequence[int]], config: EngineConfig) -> Steps | None:
    """The steps between the token times `chunks` of each request; None without any."""
    tokens = [_token_times(each, chunks) for each in arrivals]
    with_tokens = [place for place, times in enumerate(tokens) if len(times)]
    if not with_tokens:
        return None
    counts = np.array([len(tokens[place]) for place in with_tokens])
    starts = np.cumsum(counts) - counts
    times = np.concatenate([tokens[place] for place in with_tokens])
    steps, ends_us = _clustered(times, starts)
    input_tokens = np.array([arrivals[place].request.input_tokens for place in with_tokens])
    first, last = steps[starts], steps[starts + counts - 1]
    num_steps = len(ends_us)
    decodes = _covered(first + 1, last + 1, np.ones(len(with_tokens), np.int64), num_steps)
    # A request has its prompt and one token less than there are steps from its first to this one.
    behind = _covered(first + 1, last + 1, input_tokens - first - 1, num_steps)
    plain = decodes > 0
    plain &= ~_irregular(steps, starts, num_steps)
    plain &= ~_with_hidden(arrivals, tokens, ends_us)
    by_step = np.argsort(first, kind="stable")
    prompt_tokens = np.bincount(first, weights=input_tokens, minlength=num_steps).astype(np.int64)
    plain &= ~_in_pieces(prompt_tokens + decodes, first, input_tokens, config)
    return Steps(
        ends_us=ends_us,
        decodes=decodes,
        context_tokens=behind + decodes * np.arange(num_steps),
        plain=plain,
        prompt_steps=first[by_step],
        prompt_requests=np.array(with_tokens)[by_step],
        prompt_tokens=input_tokens[by_step],
        turn_us=_turn_us(times, steps, num_steps),
    )


def _turn_us(times: Floats, steps: Ints, num_steps: int) -> float:
    """Return the time between two tokens of a step: the usual one of steps, weighed by their tokens."""
    counts = np.bincount(steps, minlength=num_steps)
    firsts, lasts = np.full(num_steps, np.inf), np.full(num_steps, -np.inf)
    np.minimum.at(firsts, steps, times)
    np.maximum.at(lasts, steps, times)
    several = counts > 1
    if several.sum() < MIN_STEPS_WITH_TURNS:
        return 0.0
    gaps_us, weights = (lasts - firsts)[several] / (counts[several] - 1), counts[several] - 1
    order = np.argsort(gaps_us)
    middle = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    return float(gaps_us[order][middle])


def _token_times(arrival: Arrival, chunks: Mapping[int, Sequence[int]]) -> Floats:
    """The instant of each token; none for a request whose chunks are not single tokens."""
    row = arrival.row
    times = chunks.get(row.request_id, ()) if isinstance(row, TraceRow) else ()
    if not times or not isinstance(row, TraceRow):
        return np.zeros(0)
    first, last = content_chunks(times, row.output_tokens, first_token_us(row))
    tokens = np.array(times[first : last + 1], np.float64)
    return tokens if len(tokens) == row.output_tokens else np.zeros(0)


def _clustered(times: Floats, starts: Ints) -> tuple[Ints, Floats]:
    """The step of each token, and when steps ended: the tokens of one come almost together."""
    gaps = np.diff(times)
    within = np.delete(gaps, starts[1:] - 1)
    apart_us = SAME_INSTANT_SHARE * float(np.median(within)) if len(within) else 0.0
    order = np.argsort(times, kind="stable")
    begins = np.concatenate([[True], np.diff(times[order]) > apart_us])
    steps = np.empty(len(times), np.int64)
    steps[order] = np.cumsum(begins) - 1
    return steps, times[order][begins]


def _covered(first: Ints, end: Ints, amounts: Ints, num_steps: int) -> Ints:
    """Sum of the `amounts` of all that reach from `first` up to, not including, `end`, at each step."""
    changes = np.zeros(num_steps + 1, np.int64)
    np.add.at(changes, first, amounts)
    np.add.at(changes, end, -amounts)
    sums: Ints = np.cumsum(changes)[:-1]
    return sums


def _irregular(steps: Ints, starts: Ints, num_steps: int) -> Bools:
    """Steps in which a request that runs did not get exactly one token: it was preempted, or its client stalled."""
    advances = np.diff(steps)
    own = np.ones(len(advances), np.bool_)
    own[starts[1:] - 1] = False
    odd = np.flatnonzero(own & (advances != 1))
    first, last = np.minimum(steps[odd] + 1, steps[odd + 1]), np.maximum(steps[odd], steps[odd + 1])
    return _covered(first, last + 1, np.ones(len(odd), np.int64), num_steps) > 0


def _with_hidden(arrivals: Sequence[Arrival], tokens: Sequence[Floats], ends_us: Floats) -> Bools:
    """Steps during which a request with unknown token times ran."""
    spans = [
        (each.row.send_time_us, max(each.row.send_time_us, each.row.last_chunk_time_us))
        for each, times in zip(arrivals, tokens, strict=True)
        if not len(times) and isinstance(each.row, TraceRow)
    ]
    instants = np.array(spans, np.float64).reshape(-1, 2)
    first, end = ends_us.searchsorted(instants[:, 0]), ends_us.searchsorted(instants[:, 1], side="right")
    return _covered(first, end, np.ones(len(instants), np.int64), len(ends_us)) > 0


def _in_pieces(num_tokens: Ints, first: Ints, input_tokens: Ints, config: EngineConfig) -> Bools:
    """Steps that may have held a piece of a prompt.

    Such a prompt did not fit in beside the others, or is longer than what is computed at a time.
    """
    longest = np.zeros(len(num_tokens) + 1, np.int64)
    np.maximum.at(longest, first, input_tokens)
    is_crowded = num_tokens + longest[1:] > config.max_num_batched_tokens
    at_a_time = min(config.long_prefill_token_threshold or config.max_num_batched_tokens, config.max_num_batched_tokens)
    is_long = input_tokens > at_a_time
    # Twice as many steps as it has pieces: each may have had to share its step.
    begins = np.maximum(0, first - 2 * -(-input_tokens // at_a_time))[is_long]
    with_long = _covered(begins, first[is_long] + 1, np.ones(int(is_long.sum()), np.int64), len(num_tokens)) > 0
    in_pieces: Bools = is_crowded | np.concatenate([[False], is_crowded[:-1]]) | with_long
    return in_pieces


STEPS_BEFORE = 2
"""A stretch begins so many steps before its first prompt."""
MIN_STEPS_AFTER = 3
"""Least steps of a stretch after its last prompt, unless another prompt comes sooner, which then belongs to it."""
MAX_STEPS_AFTER = 8
_FIELDS = len(BatchShape._fields)
_DECODES, _CONTEXT = BatchShape._fields.index("decode_requests"), BatchShape._fields.index("decode_context_tokens")


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches of `steps`, each with at least one prompt in it, in order."""

    steps: Steps
    first: Ints
    """The first step of each."""
    last: Ints
    first_prompt: Ints
    """Place of the first prompt of each stretch among the prompts of the steps."""
    last_prompt: Ints

    def __len__(self) -> int:
        return len(self.first)

    @property
    def durations_us(self) -> Floats:
        durations: Floats = self.steps.ends_us[self.last] - self.steps.ends_us[self.first - 1]
        return durations

    @property
    def requests(self) -> Ints:
        """The request of the first prompt in each stretch, by the place of its arrival."""
        places: Ints = self.steps.prompt_requests[self.first_prompt]
        return places

    def only(self, kept: Bools) -> "Stretches":
        """Stretches whose prompts all belong to the first requests that are `kept`."""
        prompt_kept = _of_prompts(self.steps, kept.astype(np.int64)) > 0
        lost = np.concatenate([[0], np.cumsum(~prompt_kept)])
        whole = lost[self.last_prompt + 1] == lost[self.first_prompt]
        return Stretches(
            self.steps, self.first[whole], self.last[whole], self.first_prompt[whole], self.last_prompt[whole]
        )

    def shapes(self, cached_tokens: Ints) -> tuple[Ints, Ints]:
        """A row of `BatchShape` for each step of the stretches, and where in them each stretch begins.

        `cached_tokens` is what the first requests have found in the cache of their prompts.
        """
        steps = self.steps
        every = np.zeros((len(steps.ends_us), _FIELDS), np.int64)
        every[:, _DECODES], every[:, _CONTEXT] = steps.decodes, steps.context_tokens
        for step, shape in _with_prompts(steps, _of_prompts(steps, cached_tokens)):
            every[step] = shape
        lengths = self.last - self.first + 1
        begins = np.cumsum(lengths) - lengths
        return every[np.arange(lengths.sum()) + np.repeat(self.first - begins, lengths)], begins


def stretches_of(steps: Steps) -> Stretches:
    """Return the stretches that consist of plain steps only."""
    found = [
        (first, last, *prompts)
        for first, last, *prompts in _cut(steps.prompt_steps, len(steps.ends_us))
        if first > 0 and steps.plain[first : last + 1].all()
    ]
    return Stretches(steps, *np.array(found, np.int64).reshape(-1, 4).T)


def _cut(prompt_steps: Ints, num_steps: int) -> Iterator[tuple[int, int, int, int]]:
    """First and last step, first and last prompt of each stretch."""
    apart = np.diff(prompt_steps) > STEPS_BEFORE + MIN_STEPS_AFTER
    begins = np.concatenate([[0], np.flatnonzero(apart) + 1])
    for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(prompt_steps)], strict=True):
        next_step = int(prompt_steps[end]) - STEPS_BEFORE if end < len(prompt_steps) else num_steps
        last_step = min(int(prompt_steps[end - 1]) + MAX_STEPS_AFTER, next_step - 1, num_steps - 1)
        yield int(prompt_steps[first]) - STEPS_BEFORE, last_step, first, end - 1


def _of_prompts(steps: Steps, of_requests: Ints) -> Ints:
    """The figures of the first requests, for each prompt; 0 for prompts of others."""
    known = steps.prompt_requests < len(of_requests)
    return np.where(known, of_requests[np.where(known, steps.prompt_requests, 0)], 0)


def _with_prompts(steps: Steps, cached_tokens: Ints) -> Iterator[tuple[int, BatchShape]]:
    """Each step that holds prompts, with its shape."""
    recent = RecentPrompts()
    begins = np.flatnonzero(np.diff(steps.prompt_steps, prepend=-1))
    new = steps.prompt_tokens - cached_tokens
    of_each = (np.ones_like(new), new, new * new, cached_tokens, new * cached_tokens, new * steps.prompt_tokens)
    numbers = steps.prompt_steps[begins]
    sums = [*(np.add.reduceat(each, begins) for each in of_each), steps.decodes[numbers], steps.context_tokens[numbers]]
    rows = np.pad(np.column_stack(sums), ((0, 0), (0, _FIELDS - len(sums)))).tolist()
    for step, shape in zip(numbers.tolist(), map(BatchShape._make, rows), strict=True):
        yield step, recent.with_recent(shape, int(steps.ends_us[max(0, step - 1)]))
        recent.add(shape.prefill_tokens, int(steps.ends_us[step]))


# One recording: the requests to simulate, the latencies that their client measured, and its parts in time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Requests in order of arrival, with the measured times to the first token and from there to the last.

    Both are nan for a request that has none to learn from.
    """

    name: str
    arrivals: list[Arrival]
    ttft_us: Floats
    decode_us: Floats
    stretches: Stretches | None = None
    """Steps derived from token times; None without token times."""
    steps: MeasuredSteps | None = None
    """Recorded steps of the engine; None without these."""
    max_concurrency: int | None = None
    """The cap requests are sent under (0: none), by schedule; None sends each when the recording did."""

    @property
    def num_answered(self) -> int:
        """Requests with a measured time to the first token."""
        return int(np.isfinite(self.ttft_us).sum())

    @property
    def sent_us(self) -> Floats:
        """Return the recorded send time of each request; without send times, the simulated arrival time."""
        sent_us = np.array([_sent_us(arrival) for arrival in self.arrivals], np.float64)
        return sent_us if sent_us.any() else np.array([arrival.at for arrival in self.arrivals], np.float64)

    @property
    def mean_in_flight(self) -> float:
        """Return the mean number of requests in flight, by the times of the recording; at least 1."""
        known = np.isfinite(self.ttft_us)
        if not known.any():
            return 1.0
        sent_us, lasted_us = self.sent_us[known], self.ttft_us[known] + np.nan_to_num(self.decode_us[known])
        return max(1.0, float(lasted_us.sum() / ((sent_us + lasted_us).max() - sent_us.min())))

    @property
    def found_idle(self) -> npt.NDArray[np.bool_]:
        """Requests that were sent when all before were answered, by the times of the recording."""
        sent_us = self.sent_us
        ended_us = np.nan_to_num(sent_us + self.ttft_us + np.nan_to_num(self.decode_us), nan=-np.inf)
        order = np.argsort(sent_us, kind="stable")
        all_ended_us = np.maximum.accumulate(np.concatenate([[-np.inf], ended_us[order][:-1]]))
        idle = np.zeros(len(sent_us), np.bool_)
        idle[order] = sent_us[order] > all_ended_us
        return idle

    def refusals(self, config: EngineConfig) -> list[str]:
        """Return the reason of each refused request of a server with this configuration."""
        requests = (arrival.request for arrival in self.arrivals)
        reasons = (refusal_reason(config, each.input_tokens, each.max_output_tokens) for each in requests)
        return [reason for reason in reasons if reason is not None]

    def simulated(self, engine: Engine) -> Record:
        """Simulate the requests in a fresh engine. Returns their outcomes in order of sending."""
        if self.max_concurrency is None:
            return simulate(engine, self.arrivals).requests
        return simulate_reissued(engine, self.arrivals, self.max_concurrency).requests

    def sequences(self, engine: Engine) -> list[RunningSequence | None]:
        """Simulate the requests as `simulated` does, and return the engine's own state of each, in the order of
        `arrivals`. It is None for requests that never arrived at it."""
        if self.max_concurrency is None:
            events = run_virtual(engine, ((arrival.at, arrival.request) for arrival in self.arrivals))
        else:
            sent = reissued(engine, self.arrivals, self.max_concurrency, None, lambda _sequence, _row: None)
            events = chain.from_iterable(sent)
        found = {each.sequence.request.id: each.sequence for each in events if isinstance(each, Scheduled | Finished)}
        return [found.get(arrival.request.id) for arrival in self.arrivals]

    def head(self, num_requests: int) -> "Recording":
        """The first so many requests. There is nothing to learn from those that ran beside later ones: alone they would
        have been faster."""
        if num_requests >= len(self.arrivals):
            return self
        sent_us = np.array([_sent_us(arrival) for arrival in self.arrivals], np.float64)
        ended_us = sent_us + self.ttft_us + np.nan_to_num(self.decode_us)
        is_first = np.arange(len(self.arrivals)) < num_requests
        ended: npt.NDArray[np.bool_] = is_first & (ended_us <= sent_us[num_requests:].min())
        kept = self._masked(ended)
        return replace(
            kept,
            arrivals=self.arrivals[:num_requests],
            ttft_us=kept.ttft_us[:num_requests],
            decode_us=kept.decode_us[:num_requests],
            stretches=self._stretches(np.arange(len(self.arrivals)) < num_requests),
        )

    def without_tail(self, share: float) -> "Recording":
        """All requests, but nothing to learn from the last `share` of them."""
        keep = np.arange(len(self.arrivals)) < round(len(self.arrivals) * (1 - share))
        return replace(self._masked(keep), steps=None if self.steps is None else self.steps.part(0, 1 - share))

    def only_tail(self, share: float) -> "Recording":
        """All requests, with measurements of the last `share` of them only."""
        keep = np.arange(len(self.arrivals)) >= round(len(self.arrivals) * (1 - share))
        return replace(self._masked(keep), steps=None if self.steps is None else self.steps.part(1 - share, 1))

    def _masked(self, keep: npt.NDArray[np.bool_]) -> "Recording":
        return replace(
            self,
            ttft_us=np.where(keep, self.ttft_us, np.nan),
            decode_us=np.where(keep, self.decode_us, np.nan),
            stretches=self._stretches(keep),
        )

    def _stretches(self, keep: npt.NDArray[np.bool_]) -> Stretches | None:
        return None if self.stretches is None else self.stretches.only(keep)


def recording_of(
    trace: Trace,
    model: str,
    config: EngineConfig,
    chunks: Mapping[int, Sequence[int]],
    max_concurrency: int | None = None,
    steps: Sequence[Step] = (),
) -> Recording:
    """A trace made ready, with the recorded steps of its engine.

    With `max_concurrency` requests are sent by the schedule and that cap (0: none).

    Raises CalibrateError when no row can be learned from.
    """
    # Made once: a fit replays them many times.
    arrivals = list(arrivals_of(trace, model, config, as_scheduled=max_concurrency is not None).arrivals)
    rows = [arrival.row for arrival in arrivals if isinstance(arrival.row, TraceRow)]
    measured = np.array([_measured(row) for row in rows], np.float64).reshape(-1, 2)
    if not np.isfinite(measured[:, 0]).any():
        lacking = f"none for {model} was answered in a stream, with its times"
        raise CalibrateError(f"no row of {trace.data_path} can be learned from: {lacking}")
    between_tokens = steps_of(arrivals, chunks, config)
    return Recording(
        name=_name_of(trace.data_path),
        arrivals=arrivals,
        ttft_us=measured[:, 0],
        decode_us=measured[:, 1],
        stretches=None if between_tokens is None else stretches_of(between_tokens),
        steps=measured_steps(steps, config) if steps else None,
        max_concurrency=max_concurrency,
    )


def recording_of_steps(path: Path, steps: Sequence[Step], config: EngineConfig) -> Recording:
    """Steps alone, without the requests that they belong to. Raises CalibrateError when none can be learned from."""
    measured = measured_steps(steps, config)
    if not len(measured):
        raise CalibrateError(
            f"no step of {path} can be learned from: of {len(steps)}, all are of drafts or stand alone"
        )
    nothing = np.zeros(0)
    return Recording(name=_name_of(path), arrivals=[], ttft_us=nothing, decode_us=nothing, steps=measured)


def _name_of(path: Path) -> str:
    return "/".join(path.absolute().parts[-2:])


def _sent_us(arrival: Arrival) -> int:
    """Return the recorded send time of a request."""
    return arrival.row.send_time_us if isinstance(arrival.row, TraceRow) else arrival.at


def _measured(row: TraceRow) -> tuple[float, float]:
    in_order = 0 < row.send_time_us <= row.first_chunk_time_us <= row.last_chunk_time_us
    if row.status not in OK_STATUSES or not in_order or is_single_chunk(row):
        return np.nan, np.nan
    decode_us = row.last_chunk_time_us - row.first_chunk_time_us if row.output_tokens > 1 else np.nan
    return row.first_chunk_time_us - row.send_time_us, decode_us


MAX_SPANS = 12
MIN_REQUESTS = 200
"""Least requests of a span: with fewer its speed would depend more on chance than on the server."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Each recording in parts of so many requests; parts are numbered through, recording after recording."""

    lengths: tuple[int, ...]
    """Requests in each part of a recording; the last part may be shorter."""
    counts: tuple[int, ...]
    """Parts of each recording."""

    @property
    def total(self) -> int:
        return sum(self.counts)

    def memberships(self, recording: int, num_requests: int) -> Floats:
        """A row for each of the first so many requests of a recording, with a 1 in the column of its part."""
        first = sum(self.counts[:recording])
        rows = np.arange(num_requests)
        members = np.zeros((num_requests, self.total))
        members[rows, first + np.minimum(rows // self.lengths[recording], self.counts[recording] - 1)] = 1
        return members

    def of_each(self, values: Floats) -> list[Floats]:
        """`values`, one for each part, by recording."""
        return np.split(values, np.cumsum(self.counts)[:-1])


def spans_of(recordings: Sequence[Recording]) -> Spans:
    """Up to a dozen parts of equal length in each recording."""
    sizes = [len(each.arrivals) for each in recordings]
    counts = tuple(min(MAX_SPANS, max(1, size // MIN_REQUESTS)) for size in sizes)
    return Spans(tuple(max(1, -(-size // count)) for size, count in zip(sizes, counts, strict=True)), counts)
