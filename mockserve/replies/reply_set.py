"""One HTTP reply: the job that describes it, its choices, and their usage together."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blis_sim.engine.units import Micros
from mockserve.generation.answer import Answer, Delta, Kind
from mockserve.in_flight_request import ENDED_REPLY, InFlightRequest
from mockserve.metrics.server import ToolParsing
from mockserve.protocol.bodies import Bodies, Usage
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import Delivery, SamplingParams
from mockserve.replies.call_style import CALL_KINDS
from mockserve.replies.choice_writer import Generation, NewWriter, PlannedPrompt
from mockserve.replies.frames import CHAT_ERRORS, EventTemplates, StreamErrors
from mockserve.transport.clients import UNKNOWN_CALLER, Caller


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
        num_reasoning_tokens: int | None = None,
    ) -> Usage:
        """Return the usage of a whole reply, with the cached tokens of `flight`.

        `num_reasoning_tokens` is given if not all choices are in memory at once.
        """
        reasoning = num_reasoning_tokens
        if reasoning is None:
            reasoning = sum(each.answer.num_reasoning_tokens for prompt in prompts for each in prompt.generations)
        return Usage(
            sum(len(prompt.token_ids) for prompt in prompts),
            completion_tokens,
            self._prompt_details(flight) if self.shows_prompt_details and flight is not None else None,
            reasoning if self.counts_reasoning else None,
        )

    def metrics(self, flight: InFlightRequest | None, is_stream: bool) -> dict[str, Any] | None:
        """Return the latencies of a request with one choice; without nulls in a stream."""
        if not self.shows_metrics or flight is None:
            return None
        found = request_metrics(flight)
        return found if is_stream else {**found, "speculative_decoding": None}

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
        return min(num_tokens, prompt.generations[number].answer.num_reasoning_tokens)


def request_metrics(flight: InFlightRequest) -> dict[str, float]:
    """Return vLLM's per-request metrics, in simulated milliseconds; missing values are left out."""
    scheduled_at, first_at = flight.first_scheduled_at, flight.first_token_at
    if scheduled_at is None or first_at is None:
        return {}
    generation_us = flight.last_token_at - first_at
    found = {
        "time_to_first_token_ms": _milliseconds(first_at - scheduled_at),
        "generation_time_ms": _milliseconds(generation_us),
        "queue_time_ms": _milliseconds(scheduled_at - flight.queued_at),
        "mean_itl_ms": _milliseconds(generation_us) / max(1, flight.num_tokens - 1),
    }
    inference_us = flight.last_token_at - scheduled_at
    if inference_us > 0:
        found["tokens_per_second"] = flight.num_tokens / (inference_us / 1e6)
    return found


def _milliseconds(us: Micros) -> float:
    return us / 1000


class ParsingCounter(NamedTuple):
    """Counts parser invocations for the choices of one request.

    `after_reasoning`: the parser gets the text after the mark that ends reasoning.
    """

    metrics: ToolParsing
    request_type: str
    after_reasoning: bool

    def whole(self, has_call: bool) -> None:
        """Count a choice that was parsed as a whole."""
        self.metrics.used(self.request_type, int(has_call), int(not has_call), is_stream=False)

    def streamed(self, answer: Answer, num_tokens: int) -> None:
        """Count the first `num_tokens` tokens of a choice, which were parsed one by one."""
        deltas = list(answer.deltas or ())[:num_tokens]
        if self.after_reasoning:
            deltas = deltas[_end_of_reasoning(deltas) :]
        num_with_call = sum(any(each.kind in CALL_KINDS for each in found) for found in deltas)
        self.metrics.used(self.request_type, num_with_call, len(deltas) - num_with_call, is_stream=True)


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

    is_long: bool = False
    """Whether the choices are submitted in turn and the reply is written on another thread."""
    sampling: SamplingParams | None = None
    """Sampling parameters of the choices, for request logs and spans."""

    @property
    def num_choices(self) -> int:
        return sum(len(prompt.generations) for prompt in self.prompts)


class CompletedChoice(NamedTuple):
    """A choice of prompt `prompt_number` with its last token. `started_ns` is the Unix time of its submission."""

    job: ReplyJob
    prompt_number: int
    generation: Generation
    flight: InFlightRequest
    caller: Caller
    started_ns: int


class ReplySet:
    """The choices of one HTTP reply, which is done when all of them are, or when one fails."""

    def __init__(self, job: ReplyJob, caller: Caller = UNKNOWN_CALLER) -> None:
        self.job = job
        self.caller = caller
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.completion_tokens = 0
        self._engine_requests: list[InFlightRequest] = []
        self._num_open = job.num_choices
        self._num_reasoning_tokens: int | None = None
        """Reasoning tokens of the choices so far, if choices are planned one after the other."""

    def add_request(self, flight: InFlightRequest) -> None:
        """Add an engine request of this reply, in the order of the choices."""
        self._engine_requests.append(flight)

    @property
    def engine_requests(self) -> Sequence[InFlightRequest]:
        """Engine requests of this reply; only the first and the last of choices that are planned one after the
        other."""
        return self._engine_requests

    def add_next(self, flight: InFlightRequest, num_reasoning_tokens: int) -> None:
        """Add one of many engine requests that are not in memory together: only the first and the last are kept."""
        self._engine_requests[1:] = [flight] if self._engine_requests else []
        self._engine_requests = self._engine_requests or [flight]
        self._num_reasoning_tokens = (self._num_reasoning_tokens or 0) + num_reasoning_tokens

    def release(self) -> None:
        """Release the ended reply from its requests; a reference cycle would keep them until a garbage collection."""
        for flight in self._engine_requests:
            flight.reply = ENDED_REPLY

    def usage(self, is_stream: bool) -> Usage:
        """Return the usage of all choices. Cached tokens are those of the first prompt in a stream, else of the
        last."""
        flight = (
            (self._engine_requests[0] if is_stream else self._engine_requests[-1]) if self._engine_requests else None
        )
        return self.job.accounting.usage(self.job.prompts, self.completion_tokens, flight, self._num_reasoning_tokens)

    def metrics(self, is_stream: bool) -> dict[str, Any] | None:
        """Return latencies if the reply has exactly one request."""
        alone = self._engine_requests[0] if len(self._engine_requests) == 1 else None
        return self.job.accounting.metrics(alone, is_stream)

    def choice_finished(self, num_tokens: int) -> bool:
        """Count one choice as finished; return whether it was the last one."""
        self.completion_tokens += num_tokens
        self._num_open -= 1
        return self._num_open == 0

    def resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        """End the reply with an error; further tokens of other choices are ignored."""
        if not self.done.done():
            self.done.set_exception(error)
