"""`blis tap-check`: the recorded steps of a real engine against those that our scheduler composes."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import heapify, heappop
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import BatchDone, Event, StepDone
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.request import HashedBlocks, Medium, Request
from blis_sim.engine.units import Micros
from blis_sim.installation import check_plot
from blis_sim.options import OptionError, check_options, option
from blis_sim.options.option import names_in
from blis_sim.options.printing import format_option, json_option, printed_format
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from blis_sim.report.report import Report
from blis_sim.wings.tap.lines import LinkRecording, StepLine, read_recordings

if TYPE_CHECKING:
    from blis_sim.report.figures import Panel

__all__ = ["StepCheckOptions", "run"]

STEP_US: Micros = 1000
"""Duration of each step: only the order of steps and arrivals counts."""
MOST_SHOWN = 8
EARLIER_S, LATER_S = 0.002, 0.02
"""By how much a message may have come to the engine earlier or later than the fastest ones did."""
STEPS_BACK, MOST_MOVED, MOST_TRIED = 20, 8, 500
"""Where a step differs: how many steps to go back, messages to move at one of them, and places to try in all."""
BASE_STEPS = 200
"""Steps between two copies of our engine, which cost as much as it has cached blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheckOptions:
    """Settings of `blis tap-check`. Limits of the engine are in the recording; these are not."""

    recording: str = option("", "The file of a tap: PREFIX.link.jsonl.", positional=True, metavar="FILE")
    engine: int = option(0, "The data-parallel rank to check.", at_least=0)
    enable_prefix_caching: bool = option(True, "Whether the engine kept blocks for later prompts.")
    enable_chunked_prefill: bool = option(True, "Whether the engine split prompts between steps.")
    long_prefill_token_threshold: int = option(0, "Most tokens of one prompt in a step; 0 for no limit.", at_least=0)
    scheduler: str = option(
        "fcfs",
        "Order of the engine's queue.",
        choices=names_in("blis_sim.engine.scheduler.policies", "ORDERS"),
    )
    format: str = format_option()
    json: bool = json_option()
    plot: str | None = option(
        None,
        "Draw tokens and duration of each recorded step to this picture (.png, .svg or .pdf); needs matplotlib.",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check_options(self)
        _ = printed_format(self)
        check_plot("--plot", self.plot)
        if not self.recording:
            raise OptionError("FILE must be given, as in: blis tap-check tap.link.jsonl")


class Step(NamedTuple):
    """The composition of a step. The batch is None where the recording does not have it."""

    tokens: dict[int, int]
    batch: tuple[int, int, int, int] | None
    """Prompts and their tokens of the step, all other sequences and their tokens."""
    loses_requests: bool = False
    """Whether a request ended during the step; what it computed is in the sums of the step alone."""

    def equals(self, other: "Step") -> bool:
        """Whether two steps are alike, as far as both tell."""
        if self.tokens != other.tokens:
            return False
        if self.batch is None or other.batch is None or self.batch == other.batch:
            return True
        if not (self.loses_requests or other.loses_requests):
            return False
        sums = [(each[0] + each[2], each[1] + each[3]) for each in (self.batch, other.batch)]
        return sums[0] == sums[1]

    def describe(self) -> str:
        """Return a text of it."""
        shown = dict(sorted(self.tokens.items())[:MOST_SHOWN])
        more = f" and {len(self.tokens) - MOST_SHOWN} more" if len(self.tokens) > MOST_SHOWN else ""
        text = f"new tokens by request {shown}{more}"
        if self.batch is None:
            return text
        prompts, prompt_tokens, others, tokens = self.batch
        return f"{prompts} prompts with {prompt_tokens} tokens, {others} decoding with {tokens}; {text}"


@dataclass(slots=True)
class _EqualSteps(LatencyModel):
    def step_time(self, shape: BatchShape) -> Micros:
        return STEP_US


def engine_of(recording: LinkRecording, options: StepCheckOptions) -> Engine:
    """Return an engine with the limits of the recorded one. Raises OptionError if the recording does not have them."""
    limits = recording.limits
    if limits is None:
        raise OptionError(f"{options.recording} has no line of engine {options.engine}: the tap came after its start")
    if limits.pipeline_parallel_size > 1:
        raise OptionError("steps of several pipeline stages overlap: only one stage can be checked")
    try:
        config = EngineConfig(
            total_kv_blocks=limits.num_gpu_blocks,
            block_size_tokens=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            scheduler=options.scheduler,
            enable_prefix_caching=options.enable_prefix_caching,
            enable_chunked_prefill=options.enable_chunked_prefill,
            async_scheduling=False,
        )
    except EngineError as error:
        raise OptionError(f"{options.recording}: {error}") from None
    return Engine(config, _EqualSteps(), reports_batches=True)


class _Message(NamedTuple):
    """Requests of a message, and when the engine took it: at 2 n before step n is composed, at 2 n + 1 during it."""

    requests: Sequence[int]
    earliest: int
    expected: int
    latest: int


class _Place(NamedTuple):
    """How many messages were taken up to a step: requests without an output, and ends before and during it."""

    joining: int
    before: int
    during: int


class _Messages:
    """The frontend's messages in their order. The engine's clock places requests with outputs; others have a range."""

    def __init__(self, recording: LinkRecording) -> None:
        self._recording, steps = recording, recording.steps
        totals: Counter[int] = Counter()
        queued_s, last = dict[int, float](), dict[int, int]()
        for index, step in enumerate(steps):
            totals.update(step.tokens)
            queued_s |= step.queued_s
            last |= dict.fromkeys(step.tokens, index)
        self._num_tokens = {number: totals[number] for step in steps for number in step.finished}
        """Output tokens of requests that the engine ended."""
        self._ends_s = [step.ended_s for step in steps]
        requests = recording.requests
        delays = [at - requests[number].at_us / 1e6 for number, at in queued_s.items() if number in requests]
        self._offset_s = min(delays, default=0.0)  # other messages waited for the end of a step
        self._known: dict[int, list[int]] = {}
        self._order: dict[int, tuple[float, int]] = {}
        """By request: where it stands in the queue among those that joined it before the same step."""
        self._joining, self._ending = list[_Message](), list[_Message]()
        self._ended_by: dict[int, int] = {}
        """By request: how many messages are taken with the one that ends it."""
        first, before_s = 0, 0.0
        for number, line in sorted(requests.items()):
            if number in queued_s:
                before_s = queued_s[number]
                index = bisect_right(self._ends_s, before_s)
                self._known.setdefault(index, []).append(number)
                first = max(first, 2 * index)
            else:
                self._joining.append(self._message([number], line.at_us, first, is_between=True))
                first = self._joining[-1].earliest
            self._order[number] = (before_s, number)
        first = 0
        for abort in recording.aborts:
            follows = max(2 * last.get(number, -1) + 2 for number in abort.requests)
            self._ending.append(self._message(abort.requests, abort.at_us, max(first, follows)))
            first = self._ending[-1].earliest
            self._ended_by |= dict.fromkeys(abort.requests, len(self._ending))

    def _message(self, requests: Sequence[int], at_us: int, first: int, is_between: bool = False) -> _Message:
        """Return a message by the time at which it passed. Where `is_between`, it is taken before a step.

        It may always have come a place later: the time between two steps is in no recording.
        """
        at_s = at_us / 1e6 + self._offset_s
        earliest, expected, latest = (
            max(first, self._at(each, is_between)) for each in (at_s - EARLIER_S, at_s, at_s + LATER_S)
        )
        return _Message(requests, earliest, expected, max(latest, expected + 1 + is_between))

    def _at(self, at_s: float, is_between: bool) -> int:
        index = bisect_right(self._ends_s, at_s)
        if index == len(self._ends_s):
            return 2 * index
        batch = self._recording.steps[index].batch
        began_s = self._ends_s[index] - batch[4] / 1e6 if batch is not None else 0.0
        return 2 * index + (2 if is_between else 1) * (at_s >= began_s)

    def places(self, index: int, taken: _Place) -> list[tuple[int, _Place]]:
        """Return what step `index` may have taken, and how far that is from what the times say, which comes first."""
        ranges = [
            _counts(messages, first, 2 * index + is_during)
            for messages, first, is_during in (
                (self._joining, taken.joining, 0),
                (self._ending, taken.during, 0),
                (self._ending, taken.during, 1),
            )
        ]
        expected = [each[1] for each in ranges]
        expected[2] = max(expected[1:])
        near = [(max(least, some - MOST_MOVED), min(most, some + MOST_MOVED)) for least, some, most in ranges]
        found = [
            (sum(abs(a - b) for a, b in zip(each, expected, strict=True)), _Place(*each))
            for each in product(*(range(least, most + 1) for least, most in near))
            if each[1] <= each[2]
        ]
        return sorted(found)

    def of(self, index: int, taken: _Place, place: _Place) -> tuple[list[Request], list[int], list[int]]:
        """Return the requests that join before step `index`, those that end before it, and those that end in it.

        An end overtakes a request that waits for the end of a step to join: that one joins and ends at once.
        """
        unseen = [each.requests[0] for each in self._joining[taken.joining : place.joining]]
        left = [each for each in unseen if self._ended_by.get(each, taken.during + 1) > taken.during]
        numbers = sorted([*self._known.get(index, ()), *left], key=self._order.__getitem__)
        before, during = self._ending[taken.during : place.before], self._ending[place.before : place.during]
        return (
            [self._request(number) for number in numbers],
            [number for each in before for number in each.requests],
            [number for each in during for number in each.requests],
        )

    def _request(self, number: int) -> Request:
        line, limits = self._recording.requests[number], self._recording.limits
        assert limits is not None
        most = limits.max_model_len - line.prompt_tokens
        blocks = tuple(bytes.fromhex(each) for each in self._recording.blocks.get(number, ()))
        return Request(
            id=str(number),
            input_tokens=line.prompt_tokens,
            output_tokens=max(1, self._num_tokens.get(number, most)),
            blocks=HashedBlocks(str(number), blocks),
            max_output_tokens=min(line.max_tokens or most, most),
            priority=line.priority,
            media=tuple(Medium(offset, length, (number, offset)) for offset, length in line.media),
        )


def _counts(messages: Sequence[_Message], first: int, slot: int) -> tuple[int, int, int]:
    """Return how many messages are taken up to a slot: at least, by their times, and at most; `first` are already."""
    least = expected = most = first
    for number in range(first, len(messages)):
        message = messages[number]
        if message.earliest > slot:
            break
        most = number + 1
        if message.expected <= slot:
            expected = most
        if message.latest <= slot:
            least = most
    return least, max(least, expected), most


@dataclass(slots=True)
class _Ours:
    """Our engine before a step."""

    engine: Engine
    known: dict[int, int] = field(default_factory=dict)
    """Tokens of each request."""
    at: Micros = 1
    taken: _Place = field(default_factory=lambda: _Place(0, 0, 0))
    """Messages that earlier steps have taken."""
    loses_requests: bool = False

    def begin(self, messages: _Messages, index: int, place: _Place) -> Step:
        """Begin step `index` with messages that it takes. Returns the step that has ended with its beginning.

        An end by the frontend that the engine takes during a step takes that step's token with it.
        """
        joining, before, during = messages.of(index, self.taken, place)
        for request in joining:
            self.engine.submit(request, self.at)
        for number in before:
            self.engine.abort(str(number), self.at)
        ended = _composed(self.engine.advance(self.at), self.known)._replace(loses_requests=self.loses_requests)
        due_at = self.engine.next_event_at()
        for number in during:
            self.engine.abort(str(number), self.at + STEP_US // 2)
        self.at = self.at + STEP_US if due_at is None else due_at
        self.taken, self.loses_requests = place, bool(during)
        return ended


def first_difference(recording: LinkRecording, engine: Engine) -> tuple[int, Step, Step] | None:
    """Return the first step that our scheduler composes otherwise: its index, the recorded composition, and ours.

    A request joins the queue between two steps of the real engine, whose clock says when. Messages about requests
    without an output have no such time: they may have come just before a step was composed, or just after. Such a
    message is first placed by the time at which it passed. Where a step then differs, the next likely place is tried.
    """
    messages, ours = _Messages(recording), _Ours(engine)
    recorded = [Step(step.tokens, None if step.batch is None else step.batch[:4]) for step in recording.steps]
    base, path = (0, ours), list[_Place]()
    """A copy of our engine with the number of its step, and the places since then."""
    others: list[tuple[int, int, int, tuple[int, _Ours], list[_Place]]] = []
    """Paths to try: how far they are from the times, minus the step of their end, a number, and their base."""
    numbers, index, furthest, distance, num_tried = count(), 0, 0, 0, 0
    difference: tuple[int, Step, Step] | None = None
    place: _Place | None = None
    while index <= len(recorded):
        rest: list[tuple[int, _Place]] = []
        if place is None:
            (_, place), *rest = messages.places(index, ours.taken)
        if rest and (base[1] is ours or index - base[0] >= BASE_STEPS):
            base, path = (index, deepcopy(ours)), []
        ended = ours.begin(messages, index, place)
        if not index or recorded[index - 1].equals(ended):
            if rest:
                others = [each for each in others if each[1] <= STEPS_BACK - index]
                others += [(distance + more, -index, next(numbers), base, [*path, each]) for more, each in rest]
                heapify(others)
            path.append(place)
            place = None
            index += 1
            if index > furthest:
                furthest, distance, num_tried = index, 0, 0
            continue
        if index >= furthest:
            difference = index - 1, recorded[index - 1], ended
        num_tried += 1
        if not others or num_tried > MOST_TRIED:
            return difference
        distance, _, _, base, path = heappop(others)
        index, ours, place = base[0], deepcopy(base[1]), path.pop()
        for earlier in path:
            ours.begin(messages, index, earlier)
            index += 1
    return None


def _composed(events: Sequence[Event], known: dict[int, int]) -> Step:
    """Return the step that ended, by its events; `known` has the tokens of each request before it."""
    tokens: dict[int, int] = {}
    batch = (0, 0, 0, 0)
    for event in events:
        if isinstance(event, BatchDone):
            prompt_tokens = sum(number for _, number in event.prompts)
            num_others = event.shape.num_requests - len(event.prompts)
            batch = (len(event.prompts), prompt_tokens, num_others, event.shape.num_tokens - prompt_tokens)
        elif isinstance(event, StepDone):
            for each in event.emitted:
                number, now = int(each.request.id), each.tokens_at(event.index)
                if now > known.get(number, 0):
                    tokens[number] = now - known.get(number, 0)
                    known[number] = now
    return Step(tokens, batch)


def run(options: StepCheckOptions) -> int:
    """Print the first step that differs. Returns 0 if none does, else 1."""
    starts = [each for each in read_recordings(Path(options.recording)) if each.rank == options.engine]
    engines = [engine_of(each, options) for each in starts or [LinkRecording(options.engine)]]
    difference, num_before = None, 0
    for recording, engine in zip(starts, engines, strict=True):
        difference = first_difference(recording, engine)
        if difference is not None:
            difference = num_before + difference[0], *difference[1:]
            break
        num_before += len(recording.steps)
    report = _report(options, [step for each in starts for step in each.steps], difference)
    report.print(printed_format(options))
    report.write(None, options.plot)
    return int(difference is not None)


def _report(options: StepCheckOptions, steps: Sequence[StepLine], difference: tuple[int, Step, Step] | None) -> Report:
    """Return the answer: a row for the recorded and one for our composition of the first step that differs."""
    number = len(steps)
    data: dict[str, Any] = {"steps": number, "equal": number}
    text, rows = f"{number} steps, all composed alike" if number else "no steps recorded", [data]
    if difference is not None:
        index, *both = difference
        name = steps[index].step
        named = dict(zip(("recorded", "simulated"), both, strict=True))
        data["equal"] = index
        data["first_difference"] = {"step": name} | {
            whose: {"tokens": each.tokens, "batch": each.batch} for whose, each in named.items()
        }
        rows = [{"step": name, "whose": whose, "composition": each.describe()} for whose, each in named.items()]
        text = "\n".join(
            [f"step {name} of {number} differs", *(f"{row['whose'] + ':':10} {row['composition']}" for row in rows)]
        )
    return Report(
        title="Steps of an engine",
        origin=lambda: Provenance(command=command_line("blis tap-check", options), inputs=input_hashes(options)),
        data=lambda: data,
        lead=text.splitlines,
        rows=lambda: rows,
        panels=lambda: _panels(steps),
    )


def _panels(steps: Sequence[StepLine]) -> "list[Panel]":
    """Return pictures of the steps that have their batch: tokens of each, and its duration."""
    import numpy as np

    from blis_sim.report.figures import time_panel

    told = [(step.ended_s, *step.batch) for step in steps if step.batch is not None]
    if not told:
        return []
    ended_s, _, prompt_tokens, _, tokens, duration_us = np.array(told).T
    at_s = ended_s - ended_s[0]
    kinds = {"of prompts": (at_s, prompt_tokens), "of replies": (at_s, tokens)}
    return [
        time_panel("Tokens of each step", "tokens", kinds, is_stepped=True),
        time_panel("Time of each step", "milliseconds", {"": (at_s, duration_us / 1e3)}, is_stepped=True),
    ]
