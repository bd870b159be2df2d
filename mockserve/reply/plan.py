"""The plan of a reply: its choices by prompt, their format, and the usage to report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.generation.answer import Answer, Delta, Kind
from mockserve.http.headers import Caller
from mockserve.metrics.counters import ToolParsing
from mockserve.protocol.bodies import Bodies, Choice, Ending, Piece, PromptOutput, ScoredPrompt, Usage, prompt_logprobs
from mockserve.protocol.sampling import Delivery, SamplingParams
from mockserve.realtime.in_flight import InFlightRequest
from mockserve.reply.call_style import CALL_KINDS
from mockserve.reply.frames import CHAT_ERRORS, EventTemplates, StreamErrors

MOST_PLANNED_TOKENS = 1_000_000
"""Choices of one request with more tokens in total are planned lazily: a token takes 80 bytes."""

CHOICE_OVERHEAD_TOKENS = 40
"""Memory of a choice in addition to its tokens, in tokens."""

PROMPT_TOKENS_PER_ANSWER_TOKEN = 16
"""Each choice keeps the names of its prompt's blocks."""


class Generation(NamedTuple):
    """One choice of a reply."""

    request: Request
    answer: Answer
    seed: int = 0
    """Seed of random numbers about the tokens."""


def external_id(generation: Generation, prompt_number: int) -> str:
    """Return vLLM's engine request id of a choice: completions and responses have numbered ids."""
    name, _, _ = generation.request.id.rpartition("-")
    if name.startswith("cmpl-"):
        return f"{name}-{prompt_number}"
    return f"{name}_0" if name.startswith("resp_") else name


class LazyGenerations:
    """Choices that are planned anew each time they are requested, since all of them would not fit into memory.

    `make` returns an equal choice each time for equal index and number.
    """

    def __init__(self, make: Callable[[int, int], Generation], numbers: Sequence[int]) -> None:
        self._make = make
        self._numbers = numbers
        self._kept: dict[int, Generation] = {}

    def changed(self, change: Callable[[Generation], Generation]) -> "LazyGenerations":
        """The choices with `change` applied to each."""
        make = self._make
        return LazyGenerations(lambda index, number: change(make(index, number)), self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Generation:
        return self._kept.get(index) or self._make(index, self._numbers[index])

    def __iter__(self) -> Iterator[Generation]:
        return (self[index] for index in range(len(self)))

    def keep(self, index: int) -> Generation:
        """Return a choice, and keep it until `forget`."""
        found = self._kept[index] = self[index]
        return found

    def forget(self, index: int) -> None:
        """Drop a kept choice."""
        self._kept.pop(index, None)


Generations: TypeAlias = Sequence[Generation] | LazyGenerations


class PlannedPrompt(NamedTuple):
    """A planned prompt. `scores` are set when log-probabilities of the prompt's tokens are requested; `text` may be
    repeated."""

    token_ids: Sequence[int]
    text: str
    generations: Generations
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


NewWriter: TypeAlias = Callable[[PlannedPrompt, Generation], ChoiceWriter]
NewTextPiece: TypeAlias = Callable[[str], Piece]
"""Returns the piece of a token with only a given text."""


def no_text_pieces(_generation: Generation) -> NewTextPiece | None:
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
        answer = prompt.generations[number].answer
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
    text_pieces: Callable[[Generation], NewTextPiece | None] = no_text_pieces
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


class CompletedChoice(NamedTuple):
    """A choice of prompt `prompt_number` with its last token. `started_ns` is the Unix time of its submission."""

    job: ReplyJob
    prompt_number: int
    generation: Generation
    flight: InFlightRequest
    caller: Caller
    started_ns: int
