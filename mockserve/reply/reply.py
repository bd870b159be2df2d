"""One reply to a client: its plan, its choices on their way through the engine, and what they have used."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from aiohttp import web

from blis_sim.engine.units import Micros
from mockserve.executor.executor import OffloadExecutor
from mockserve.generation.answer import Answer, Delta, Kind
from mockserve.http.connection import SlowReaders
from mockserve.http.headers import UNKNOWN_CALLER, Caller, StreamHeads
from mockserve.metrics.counters import ToolParsing
from mockserve.protocol.bodies import Bodies, Choice, Ending, Piece, PromptOutput, ScoredPrompt, Usage, prompt_logprobs
from mockserve.protocol.errors import ApiError, engine_dead, paused
from mockserve.protocol.sampling import Delivery, SamplingParams
from mockserve.realtime.driver import Driver, WriteCoalescer
from mockserve.realtime.in_flight import InFlightRequest, ParentRequest
from mockserve.realtime.suspension import ClusterSuspension, Suspension
from mockserve.reply.call_style import CALL_KINDS
from mockserve.reply.frames import CHAT_ERRORS, EventTemplates, StreamErrors, TextFrame

# The plan of a reply: its choices by prompt, their format, and the usage to report.

MOST_PLANNED_TOKENS = 1_000_000
"""Choices of one request with more tokens in total are planned lazily: a token takes 80 bytes."""

CHOICE_OVERHEAD_TOKENS = 40
"""Memory of a choice in addition to its tokens, in tokens."""

PROMPT_TOKENS_PER_ANSWER_TOKEN = 16
"""Each choice keeps the names of its prompt's blocks."""


@dataclass(slots=True, eq=False)
class PlannedChoice(InFlightRequest):
    """One choice of a reply: its answer, its request to the engine, and what its reply has made of its tokens.

    A driver reports its tokens, which it hands to its reply.
    """

    answer: Answer = field(kw_only=True)
    seed: int = 0
    """Seed of random numbers about the tokens."""
    reply: "Reply | None" = None
    """The reply whose choice it is, from its submission until the reply ends: a cycle would stay in memory."""
    index: int = 0
    """Number of the choice in the reply."""
    prompt_number: int = 0
    number: int = 0
    """Number of the choice among those of its prompt."""
    num_sent: int = 0
    """Number of its tokens that a stream has sent."""
    new_piece: "NewTextPiece | None" = None
    """Function that makes the pieces of its tokens, if they add only their text; then it needs no writer."""
    frame: TextFrame | None = None
    """The frame of its events, if they differ only in their text."""
    writer: "ChoiceWriter | None" = None

    @property
    def finish_reason(self) -> str:
        reason = self.answer.ending.finish_reason
        return "stop" if reason == "tool_calls" else reason  # the engine does not know of calls

    @property
    def is_streamed(self) -> bool:
        return self.reply is not None and self.reply.is_streamed

    def external_id(self, prompt_number: int) -> str:
        """Return vLLM's engine request id: completions and responses have numbered ids."""
        name, _, _ = self.request.id.rpartition("-")
        if name.startswith("cmpl-"):
            return f"{name}-{prompt_number}"
        return f"{name}_0" if name.startswith("resp_") else name

    @property
    def size_tokens(self) -> int:
        """The size in memory, as a number of output tokens."""
        request = self.request
        return CHOICE_OVERHEAD_TOKENS + request.output_tokens + request.input_tokens // PROMPT_TOKENS_PER_ANSWER_TOKEN

    def ending_at(self, num_tokens: int, is_stream: bool = False) -> Ending:
        """Return the planned ending, or `length` if the engine stopped earlier."""
        answer = self.answer
        if num_tokens < len(answer.token_ids):
            return Ending("length")
        return answer.ending if answer.streamed_ending is None or not is_stream else answer.streamed_ending

    def token(self, number: int) -> None:
        if self.reply is not None:
            self.reply.token(self, number)

    def tokens(self, first: int, last: int) -> None:
        if self.reply is not None:
            self.reply.tokens(self, first, last)

    def finish(self, num_tokens: int) -> None:
        if self.reply is not None:
            self.reply.choice_ended(self, num_tokens, self.reply.ending_of(self, num_tokens))

    def abort(self, num_tokens: int) -> None:
        if self.reply is not None:
            self.reply.choice_ended(self, num_tokens, Ending("abort"))

    def fail(self, message: str, status: int) -> None:
        if self.reply is not None:
            self.reply.choice_failed(self, failure(message, status))

    def detach(self) -> None:
        self.reply = None


class LazyChoices:
    """Choices that are planned anew each time they are requested, since all of them would not fit into memory.

    `make` returns an equal choice each time for equal index and number.
    """

    def __init__(self, make: Callable[[int, int], PlannedChoice], numbers: Sequence[int]) -> None:
        self._make = make
        self._numbers = numbers
        self._kept: dict[int, PlannedChoice] = {}

    def changed(self, change: Callable[[PlannedChoice], PlannedChoice]) -> "LazyChoices":
        """The choices with `change` applied to each."""
        make = self._make
        return LazyChoices(lambda index, number: change(make(index, number)), self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> PlannedChoice:
        return self._kept.get(index) or self._make(index, self._numbers[index])

    def __iter__(self) -> Iterator[PlannedChoice]:
        return (self[index] for index in range(len(self)))

    def keep(self, index: int) -> PlannedChoice:
        """Return a choice, and keep it until `forget`."""
        found = self._kept[index] = self[index]
        return found

    def forget(self, index: int) -> None:
        """Drop a kept choice."""
        self._kept.pop(index, None)


PlannedChoices: TypeAlias = Sequence[PlannedChoice] | LazyChoices


class PlannedPrompt(NamedTuple):
    """A planned prompt. `scores` are set when log-probabilities of the prompt's tokens are requested; `text` may be
    repeated."""

    token_ids: Sequence[int]
    text: str
    choices: PlannedChoices
    scores: ScoredPrompt | None = None
    first_token_text: str = ""
    shows_text: bool = False

    @property
    def prompt_output(self) -> PromptOutput:
        """Prompt data for the reply."""
        return PromptOutput(
            token_ids=self.token_ids,
            text=self.text if self.shows_text else None,
            logprobs=None if self.scores is None else prompt_logprobs(self.scores),
        )


class ChoiceWriter(Protocol):
    """Converts the tokens of one choice. Tokens are counted from 0; a range excludes its end."""

    def single_delta(self, place: int) -> Delta | None:
        """Return the delta of a token if it is the only one, for a template; else None."""
        return None

    def single_delta_piece(self, single_delta: Delta) -> Piece:
        """Return the piece of a token with only this delta."""
        return Piece(delta=single_delta.text)

    def piece(self, first: int, last: int) -> Piece | None:
        """Return the piece of a range of tokens in a stream; None if it is empty. Ranges must be adjacent."""
        return self.last_piece(first, last)

    def last_piece(self, first: int, last: int) -> Piece:
        """Return the last piece of the choice, which is never empty."""
        ...

    def choice(self, num_tokens: int, ending: Ending) -> Choice:
        """Return the whole choice, for a whole reply."""
        ...


NewWriter: TypeAlias = Callable[[PlannedPrompt, PlannedChoice], ChoiceWriter]
NewTextPiece: TypeAlias = Callable[[str], Piece]
"""Returns the piece of a token with only a given text."""


def no_text_pieces(_choice: PlannedChoice) -> NewTextPiece | None:
    """Return None: no token adds only its text."""
    return None


class Accounting(NamedTuple):
    """Usage that the server reports. `media_tokens` counts tokens of images and recordings by modality.

    Only chat replies have the number of tokens that remain in the cache; `block_size_tokens` is None for other replies.
    """

    shows_prompt_details: bool = False
    counts_reasoning: bool = False
    shows_metrics: bool = False
    block_size_tokens: int | None = None
    media_tokens: Mapping[str, int] | None = None

    def running_usage(self, prompt: PlannedPrompt, number: int, num_tokens: int) -> Usage:
        """Return the usage of one choice so far."""
        reasoning = self._reasoning(prompt, number, num_tokens)
        return Usage(len(prompt.token_ids), num_tokens, num_reasoning_tokens=reasoning)

    def usage(
        self,
        prompts: Sequence[PlannedPrompt],
        completion_tokens: int,
        flight: InFlightRequest | None,
        num_reasoning_tokens: int,
    ) -> Usage:
        """Return the usage of a whole reply, with the cached tokens of `flight`."""
        return Usage(
            sum(len(prompt.token_ids) for prompt in prompts),
            completion_tokens,
            self._prompt_details(flight) if self.shows_prompt_details and flight is not None else None,
            num_reasoning_tokens if self.counts_reasoning else None,
        )

    def metrics(self, flight: InFlightRequest | None, is_stream: bool) -> dict[str, Any] | None:
        """Return the latencies of a request with one choice; without nulls in a stream."""
        if not self.shows_metrics or flight is None:
            return None
        found = {**request_metrics(flight), "speculative_decoding": None}
        return {name: value for name, value in found.items() if value is not None} if is_stream else found

    def _prompt_details(self, flight: InFlightRequest) -> dict[str, Any]:
        cached = flight.num_cached_tokens
        created = None
        if self.block_size_tokens is not None:
            full_blocks = flight.request.input_tokens // self.block_size_tokens
            created = max(0, full_blocks * self.block_size_tokens - cached)
        media = dict(self.media_tokens) if self.media_tokens else None
        return {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": media}

    def _reasoning(self, prompt: PlannedPrompt, number: int, num_tokens: int) -> int | None:
        if not self.counts_reasoning:
            return None
        answer = prompt.choices[number].answer
        places = (
            place
            for place, found in enumerate(answer.deltas or ())
            if any(each.kind is Kind.REASONING for each in found)
        )
        return max(0, min(num_tokens - next(places, 0), answer.num_reasoning_tokens))


REQUEST_METRICS = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")


def request_metrics(flight: InFlightRequest) -> dict[str, float | None]:
    """Return vLLM's per-request metrics, in simulated milliseconds; None for what a request does not have."""
    scheduled_at, first_at = flight.first_scheduled_at, flight.first_token_at
    if scheduled_at is None or first_at is None:
        return dict.fromkeys(REQUEST_METRICS)
    generation_us, inference_us = flight.last_token_at - first_at, flight.last_token_at - scheduled_at
    num_gaps = flight.num_tokens - 1
    values = (
        _in_ms(first_at - scheduled_at),
        _in_ms(generation_us),
        _in_ms(scheduled_at - flight.queued_at),
        _in_ms(generation_us) / num_gaps if num_gaps > 0 else None,
        flight.num_tokens / (inference_us / 1e6) if inference_us > 0 else None,
    )
    return dict(zip(REQUEST_METRICS, values, strict=True))


def _in_ms(us: Micros) -> float:
    return us / 1000


class ParsingCounter(NamedTuple):
    """Counts parser invocations for the choices of one request.

    `after_reasoning`: the parser gets the text after the mark that ends reasoning. `interval` is the number of tokens
    of each event after the first.
    """

    metrics: ToolParsing
    request_type: str
    after_reasoning: bool
    interval: int = 1

    def whole(self, has_call: bool) -> None:
        """Count a choice that was parsed as a whole."""
        self.metrics.used(self.request_type, int(has_call), int(not has_call), is_stream=False)

    def streamed(self, answer: Answer, sent: Sequence[Sequence[Delta]] | None, num_tokens: int) -> None:
        """Count the first `num_tokens` tokens of a choice, which were parsed event by event.

        `sent` are the deltas of each token as the parser hands them on, None for text alone.
        """
        first = _end_of_reasoning(list(answer.deltas or ())[:num_tokens]) if self.after_reasoning else 0
        events = dict.fromkeys(map(self._event_of, range(first, num_tokens)), False)
        for place, brought in enumerate((sent or ())[first:num_tokens], first):
            if any(each.kind in CALL_KINDS for each in brought):
                events[self._event_of(place)] = True
        num_with_call = sum(events.values())
        self.metrics.used(self.request_type, num_with_call, len(events) - num_with_call, is_stream=True)

    def _event_of(self, place: int) -> int:
        """Return the number of the event with token `place`; the first token has one of its own."""
        return 0 if place == 0 else 1 + (place - 1) // self.interval


def _end_of_reasoning(deltas: Sequence[Sequence[Delta]]) -> int:
    """Return the index of the token after the reasoning; the number of all tokens without reasoning."""
    places = [place for place, found in enumerate(deltas) if any(each.kind is Kind.REASONING for each in found)]
    return places[-1] + 1 if places else 0


AT_THE_END = 0
"""Stream interval that sends a choice only when all of it is complete."""


class ReplyJob(NamedTuple):
    """A reply to write: its choices by prompt, their format, and the reported usage.

    `stream_interval` is the number of tokens of each event after the first.
    """

    bodies: Bodies
    new_writer: NewWriter
    delivery: Delivery
    prompts: Sequence[PlannedPrompt]
    text_pieces: Callable[[PlannedChoice], NewTextPiece | None] = no_text_pieces
    """Returns what makes the pieces of a choice whose tokens add only their text, so that it needs no writer; None for
    other choices."""
    accounting: Accounting = Accounting()
    stream_interval: int = 1
    templates: EventTemplates | None = None
    """Shared templates of events; without them each stream makes its own."""
    errors: StreamErrors = CHAT_ERRORS
    num_announced: int | None = None
    """Number of choices that a stream opens, if it differs from the number of choices in the reply."""
    is_empty: bool = False
    """Whether the reply has no tokens, so that the engine gets no request."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """Parameters for the transfer of a choice's blocks to a later server."""

    gets_comments: bool = True
    """Whether a silent stream gets the comments of `--sse-keep-alive-interval`."""
    is_long: bool = False
    """Whether the choices are submitted one after another and the reply is written on another thread."""
    sampling: SamplingParams | None = None
    """Sampling parameters of the choices, for request logs and spans."""
    extra_args: Mapping[str, Any] | None = None
    """Arguments for the engine beside the sampling parameters, for request logs."""


# The reply.


class RequestObserver(Protocol):
    """Observes each reply when its requests are submitted, and each choice with its last token."""

    def tokenized(self, name: str, prompt: str | None, token_ids: Sequence[int], adapter: str) -> None:
        """A prompt or token ids came to be converted. `name` is the id of the request."""
        ...

    def received(self, job: ReplyJob) -> None:
        """A reply's requests are about to go to the engine."""
        ...

    def completed(self, reply: "Reply", choice: PlannedChoice) -> None:
        """A choice of a reply is complete."""
        ...

    def close(self) -> None:
        """Flush pending output."""
        ...


class OpenReplies:
    """Counts open replies: a `with` block is open for a reply, and for planning that takes several turns."""

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, *_error: object) -> None:
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def wait_until_none(self, timeout_s: float) -> None:
        """Return when no reply is open, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.number:  # a planned reply opens as soon as its planning ends
                    self._idle.clear()
                    await self._idle.wait()


@dataclass(slots=True)
class ReplyDelivery:
    """Everything between the engines and the connection of a reply."""

    driver: Driver
    suspension: Suspension | ClusterSuspension
    open_replies: OpenReplies
    executor: OffloadExecutor
    """Threads and worker processes for work that would block the event loop."""
    wire: WriteCoalescer
    heads: StreamHeads
    slow_readers: SlowReaders
    keep_alive_s: int
    """Seconds between comments in a stream that is silent; 0 for none."""
    cache_hit_threshold: float | None = None
    """Fraction of a prompt that the KV cache must hold for an answer, where requests may set one; else None."""
    observers: Sequence[RequestObserver] = ()
    """Writers of request logs and spans."""

    async def close_observers(self) -> None:
        """Flush observers, which may take until the timeout of an OpenTelemetry collector."""
        for observer in self.observers:
            await asyncio.to_thread(observer.close)


DELIVERY = web.AppKey("delivery", ReplyDelivery)
"""The key of an application's delivery of replies."""

MAX_OPEN = 512
"""Maximum number of choices or prompts of one HTTP request in the engine: a step that ends more of them would delay
other requests."""

PLANNING_S = 0.05
"""Seconds of planning choices or prompts before the first of them is submitted."""

SLICE_S = 0.005
"""Seconds of submission before the event loop runs other work."""

PROMPT_TOKENS_AT_ONCE = 32_768
PAUSE_S = 0.01
"""Number of submitted prompt tokens before a pause for an engine step: a step looks up each of their blocks."""


class Reply:
    """One reply to a client: its choices in the engine, and what they have used together.

    It is done when all choices are, or when one fails. All choices of a short reply are submitted at once. A long reply
    is planned in parts on a thread. Its choices are submitted one after the other, a limited number at a time. Choices
    that are still in the engine at the end of the `with` block are aborted.
    """

    __slots__ = (
        "_arrived_at", "_choices", "_first", "_last", "_leader", "_moved", "_num_reasoning_tokens", "_num_requests",
        "_num_unplanned", "_open_tokens", "caller", "completion_tokens", "delivery", "done", "flights", "job",
        "num_choices", "num_open", "started_ns",
    )  # fmt: skip

    is_streamed = False
    """Whether tokens are sent as they are generated."""

    def __init__(
        self, delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
    ) -> None:
        """`arrived_at` is the arrival of the request on the driver's clock."""
        self.delivery = delivery
        self.job = job
        self.caller = caller
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.completion_tokens = 0
        self.num_choices = 0
        for prompt in job.prompts:
            self.num_choices += len(prompt.choices)
        self.num_open = self._num_unplanned = self.num_choices
        """Number of choices that have not ended."""
        self.flights: dict[str, PlannedChoice] = {}
        """Choices in the engine by id. Those of a long reply leave when they end."""
        self._arrived_at = arrived_at
        self.started_ns = time.time_ns() if delivery.observers else 0
        """Unix time of its submission, for observers."""
        self._choices: Iterator[PlannedChoice] = iter(())
        self._open_tokens = 0
        self._moved: asyncio.Event | None = None
        """Set when a choice of a long reply has ended; None for a short reply."""
        self._leader = ""
        """Id of the first request. vLLM prepares all choices and prompts of a message, and then sends them to its
        engine one by one."""
        self._num_requests = 0
        self._first: PlannedChoice | None = None
        self._last: PlannedChoice | None = None
        self._num_reasoning_tokens = 0

    # --- what becomes of the tokens of its choices ---

    def begin_choice(self, choice: PlannedChoice) -> None:
        """Prepare to take the tokens of a choice, which goes to the engine now."""

    def token(self, choice: PlannedChoice, number: int) -> None:
        """Take all tokens of a choice up to `number`, counted from 1."""

    def tokens(self, choice: PlannedChoice, first: int, last: int) -> None:
        """Take tokens `first` to `last` of a choice, of one step each; all earlier tokens have come."""
        if self.is_streamed:
            for number in range(first, last + 1):
                self.token(choice, number)

    def ending_of(self, choice: PlannedChoice, num_tokens: int) -> Ending:
        """Return the ending of a choice with `num_tokens` tokens that was not aborted."""
        return choice.ending_at(num_tokens)

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        """Take the remaining tokens of a choice up to `num_tokens`, and its end."""
        if self.count_ended(num_tokens):
            self.resolve()

    def fail(self, error: ApiError) -> None:
        """End the reply with an error; further tokens of other choices are ignored."""
        if not self.done.done():
            self.done.set_exception(error)

    # --- its way through the engine ---

    async def run(self) -> None:
        """Submit every choice; return when the reply has ended. Raises ApiError if it fails."""
        with self:
            await self.placed()
            await self.ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.done.cancel()
        for request_id, choice in self.flights.items():
            self.delivery.driver.abort(request_id)
            choice.detach()

    async def placed(self) -> None:
        """Submit a short reply; return when the engine has placed its requests.

        Raises ApiError if the engine refuses one of them before.
        """
        job = self.job
        self._choices = _planned_choices(job.prompts)
        if job.is_empty:
            self._num_unplanned = 0
            for choice in self._choices:
                choice.reply = self
                self.begin_choice(choice)
                choice.finish(0)
                choice.detach()
            return
        for observer in self.delivery.observers:
            observer.received(job)
        if job.is_long:
            self._moved = asyncio.Event()
            return
        for choice in self._choices:
            self._submit(choice)
        await self.delivery.driver.until_routed(self.flights)
        if self.done.done():
            await self.done

    async def ended(self) -> None:
        """Submit the choices of a long reply as earlier ones end; return when the reply has ended.

        Raises ApiError if the reply has failed.
        """
        if self._moved is not None:
            moved = self._moved
            self.done.add_done_callback(lambda _: moved.set())
            ready: deque[PlannedChoice] = deque()
            while not self.done.done() and (ready or self._num_unplanned):
                ready = ready or await self._plan_some()
                await self._submit_some(ready, moved)
        await self.done

    def usage(self, is_stream: bool) -> Usage:
        """Return the usage of all choices. Cached tokens belong to the first prompt in a stream, else to the last."""
        flight = self._first if is_stream else self._last
        return self.job.accounting.usage(self.job.prompts, self.completion_tokens, flight, self._num_reasoning_tokens)

    def metrics(self, is_stream: bool) -> dict[str, Any] | None:
        """Return latencies if the reply has exactly one request."""
        return self.job.accounting.metrics(self._first if self._num_requests == 1 else None, is_stream)

    def choice_ended(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        """End a choice, tell observers, and make place for another one of a long reply."""
        self.end_choice(choice, num_tokens, ending)
        if (self._moved is not None or self.started_ns) and choice.request.id in self.flights:
            for observer in self.delivery.observers:
                observer.completed(self, choice)
            self._make_place(choice)

    def choice_failed(self, choice: PlannedChoice, error: ApiError) -> None:
        """End the reply with the error of a choice."""
        self.fail(error)
        if choice.request.id in self.flights:
            self._make_place(choice)

    def count_ended(self, num_tokens: int) -> bool:
        """Count one choice as ended; return whether it was the last one."""
        self.completion_tokens += num_tokens
        self.num_open -= 1
        return self.num_open == 0

    def resolve(self) -> None:
        """End the reply."""
        if not self.done.done():
            self.done.set_result(None)

    async def _plan_some(self) -> deque[PlannedChoice]:
        """Return the next choices, at least one unless the reply ends earlier."""
        planning = asyncio.ensure_future(self.delivery.executor.run(True, self._next_choices))
        try:
            await asyncio.wait((planning, self.done), return_when=asyncio.FIRST_COMPLETED)
            return planning.result() if planning.done() else deque()
        finally:
            planning.cancel()

    def _next_choices(self) -> deque[PlannedChoice]:
        until_s = time.monotonic() + PLANNING_S
        found: deque[PlannedChoice] = deque()
        size_tokens = 0
        for choice in self._choices:
            found.append(choice)
            size_tokens += choice.size_tokens
            if time.monotonic() >= until_s or size_tokens >= MOST_PLANNED_TOKENS // 4:
                break
        self._num_unplanned -= len(found)
        return found

    async def _submit_some(self, ready: deque[PlannedChoice], moved: asyncio.Event) -> None:
        """Submit as many of the choices as fit, then wait until a choice has ended if some are left."""
        moved.clear()
        until_s = time.monotonic() + SLICE_S
        num_prompt_tokens = 0
        while ready and self._fits(ready[0]) and not self.done.done():
            num_prompt_tokens += self._submit(ready.popleft())
            is_much = num_prompt_tokens >= PROMPT_TOKENS_AT_ONCE
            if is_much or time.monotonic() >= until_s:
                await asyncio.sleep(PAUSE_S if is_much else 0)
                num_prompt_tokens = 0 if is_much else num_prompt_tokens
                until_s = time.monotonic() + SLICE_S
        if ready and not self.done.done():
            await moved.wait()

    def _fits(self, choice: PlannedChoice) -> bool:
        num_open = len(self.flights)
        return not num_open or (num_open < MAX_OPEN and self._open_tokens + choice.size_tokens <= MOST_PLANNED_TOKENS)

    def _submit(self, choice: PlannedChoice) -> int:
        """Submit a choice; return its number of prompt tokens."""
        request, caller = choice.request, self.caller
        if self._leader:
            request = request._replace(follows=self._leader)
        else:
            self._leader = request.id
        if caller is not UNKNOWN_CALLER:
            request = caller.applied_to(request)
        choice.request, choice.reply = request, self
        self.flights[request.id] = self._last = choice
        self.begin_choice(choice)
        self.delivery.driver.submit(choice, self._arrived_at, caller.rank)
        self._first = self._first or choice
        self._num_requests += 1
        self._num_reasoning_tokens += choice.answer.num_reasoning_tokens
        self._open_tokens += 0 if self._moved is None else choice.size_tokens
        return request.input_tokens

    def _make_place(self, choice: PlannedChoice) -> None:
        """Let a choice of a long reply that has ended leave."""
        if self._moved is None:
            return
        del self.flights[choice.request.id]
        choice.detach()
        self._open_tokens -= choice.size_tokens
        choices = self.job.prompts[choice.prompt_number].choices
        if isinstance(choices, LazyChoices):
            choices.forget(choice.number)
        self._moved.set()


def _planned_choices(prompts: Sequence[PlannedPrompt]) -> Iterator[PlannedChoice]:
    """Yield every choice in order, planned when it is requested."""
    index = 0
    for prompt_number, prompt in enumerate(prompts):
        choices = prompt.choices
        parent = ParentRequest(len(choices)) if len(choices) > 1 else None
        for number in range(len(choices)):
            choice = choices.keep(number) if isinstance(choices, LazyChoices) else choices[number]
            choice.parent, choice.index, choice.prompt_number, choice.number = parent, index, prompt_number, number
            yield choice
            index += 1


def failure(message: str, status: int) -> ApiError:
    """Return the error of a refused request with `status`, else the error of a dead engine."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return engine_dead()
    return ApiError(message, status=status, kind=_KINDS.get(status, "BadRequestError"))


_KINDS: Mapping[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}


# A reply that is no stream.


class _End(NamedTuple):
    num_tokens: int
    ending: Ending


class WholeReply(Reply):
    """A reply that is no stream: its choices by their index, written when they are read.

    Choices read by index are kept.
    """

    __slots__ = ("_ends", "_kept")

    def __init__(
        self, delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
    ) -> None:
        super().__init__(delivery, job, arrived_at, caller)
        self._ends: list[_End | None] = [None] * self.num_open
        self._kept: dict[int, Choice] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Choice:
        place = range(len(self))[index]
        if place not in self._kept:
            self._kept[place] = self._written(place)
        return self._kept[place]

    def __iter__(self) -> Iterator[Choice]:
        for index in range(len(self)):
            yield self._kept.get(index) or self._written(index)

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        self._ends[choice.index] = _End(num_tokens, ending)
        super().end_choice(choice, num_tokens, ending)

    def _written(self, index: int) -> Choice:
        job, end = self.job, self._ends[index]
        assert end is not None  # a reply of which a choice has failed is not written
        place, number = divmod(index, len(job.prompts[0].choices))
        prompt = job.prompts[place]
        writer = job.new_writer(prompt, prompt.choices[number])
        return writer.choice(end.num_tokens, end.ending)._replace(kv_transfer_params=job.kv_transfer_params)


async def collect(
    delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller = UNKNOWN_CALLER
) -> tuple[Reply, Sequence[Choice] | WholeReply]:
    """Return all choices of a reply once they are complete, and their usage and metrics. Raises ApiError if one fails.

    The choices of a long reply are written during iteration, which must run on another thread.
    """
    reply = WholeReply(delivery, job, arrived_at, caller)
    with delivery.open_replies:
        if delivery.suspension.rejects_new:
            raise paused()
        await reply.run()
    return reply, reply if job.is_long else list(reply)
