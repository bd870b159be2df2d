"""`blis tap-check`: the recorded steps of a real engine against those that our scheduler composes."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
from blis_sim.report.figures import Panel, time_panel
from blis_sim.report.report import Report
from blis_sim.wings.tap.lines import LinkRecording, RequestLine, StepLine, read_recordings

__all__ = ["StepCheckOptions", "run"]

STEP_US: Micros = 1000
"""Duration of each step: only the order of steps and arrivals counts."""
MOST_SHOWN = 8


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


def simulated_steps(recording: LinkRecording, engine: Engine) -> Iterator[Step]:
    """Yield the steps that our scheduler composes for the recorded requests.

    A request joins the queue between two steps of the real engine, whose clock says when. An end by the frontend that
    arrives during a step takes that step's token with it.
    """
    arriving, before, during = _by_step(recording)
    known: dict[int, int] = {}
    of_ended = _tokens_of_ended(recording)
    at: Micros = 1
    for index in range(len(recording.steps) + 1):
        for line in arriving.get(index, ()):
            engine.submit(_request(line, recording, of_ended.get(line.request)), at)
        for number in before.get(index, ()):
            engine.abort(str(number), at)
        ended = _composed(engine.advance(at), known)
        if index:
            yield ended._replace(loses_requests=index - 1 in during)
        due_at = engine.next_event_at()
        for number in during.get(index, ()):
            engine.abort(str(number), at + STEP_US // 2)
        at = at + STEP_US if due_at is None else due_at


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


def _by_step(
    recording: LinkRecording,
) -> tuple[dict[int, list[RequestLine]], dict[int, list[int]], dict[int, list[int]]]:
    """Return by step the requests that may join it, in their order, those that end before it, and those that end in it.

    A request that the frontend ended was in the step after its last token if that step decoded more requests than it
    had tokens for.
    """
    steps, requests = recording.steps, recording.requests
    ends = [step.ended_s for step in steps]
    queued_s = {number: at for step in steps for number, at in step.queued_s.items()}
    last = {number: index for index, step in enumerate(steps) for number in step.tokens}
    delays = [at - requests[number].at_us / 1e6 for number, at in queued_s.items() if number in requests]
    offset_s = min(delays, default=0.0)  # other requests waited for the end of a step
    arriving: dict[int, list[tuple[float, int, RequestLine]]] = {}
    for number, line in requests.items():
        at_s = queued_s.get(number, line.at_us / 1e6 + offset_s)
        arriving.setdefault(bisect_right(ends, at_s), []).append((at_s, number, line))
    before: dict[int, list[int]] = {}
    during: dict[int, list[int]] = {}
    for abort in recording.aborts:
        timed = bisect_right(ends, abort.at_us / 1e6 + offset_s)
        for number in abort.requests:
            follows = last.get(number, -1) + 1
            index = max(timed, follows)
            is_in_step = timed >= index
            if 0 < follows < len(steps) and (batch := steps[follows].batch) is not None:
                step = steps[follows]
                if batch[2] > sum(each not in step.queued_s for each in step.tokens):
                    index, is_in_step = follows, True
                elif index == follows:
                    is_in_step = False
            (during if is_in_step else before).setdefault(index, []).append(number)
    ordered = {index: [line for *_, line in sorted(found, key=itemgetter(0, 1))] for index, found in arriving.items()}
    return ordered, before, during


def _tokens_of_ended(recording: LinkRecording) -> dict[int, int]:
    """Return the output tokens of each request that the engine ended."""
    totals: Counter[int] = Counter()
    for step in recording.steps:
        totals.update(step.tokens)
    return {number: totals[number] for step in recording.steps for number in step.finished}


def _request(line: RequestLine, recording: LinkRecording, num_tokens: int | None) -> Request:
    """Return the request of a line. `num_tokens` are those of its output; None where the engine did not end it."""
    limits = recording.limits
    assert limits is not None
    most = limits.max_model_len - line.prompt_tokens
    number = line.request
    return Request(
        id=str(number),
        input_tokens=line.prompt_tokens,
        output_tokens=max(1, most if num_tokens is None else num_tokens),
        blocks=HashedBlocks(str(number), tuple(bytes.fromhex(each) for each in recording.blocks.get(number, ()))),
        max_output_tokens=min(line.max_tokens or most, most),
        priority=line.priority,
        media=tuple(Medium(offset, length, (number, offset)) for offset, length in line.media),
    )


def first_difference(real: Sequence[StepLine], simulated: Iterator[Step]) -> tuple[int, Step, Step] | None:
    """Return the first step that differs: its index, the recorded composition, and ours. None if all are equal."""
    for index, (step, ours) in enumerate(zip(real, simulated, strict=False)):
        recorded = Step(step.tokens, None if step.batch is None else step.batch[:4])
        if not recorded.equals(ours):
            return index, recorded, ours
    return None


def run(options: StepCheckOptions) -> int:
    """Print the first step that differs. Returns 0 if none does, else 1."""
    recording = read_recordings(Path(options.recording)).get(options.engine, LinkRecording())
    engine = engine_of(recording, options)
    difference = first_difference(recording.steps, simulated_steps(recording, engine))
    report = _report(options, recording.steps, difference)
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


def _panels(steps: Sequence[StepLine]) -> list[Panel]:
    """Return pictures of the steps that have their batch: tokens of each, and its duration."""
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
