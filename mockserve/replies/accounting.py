"""What a reply reports beside its text: usage, and the work that a parser of tool calls would have had."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blis_sim.engine.units import Micros
from mockserve.content.answer import Answer, Delta, Kind
from mockserve.flight import Flight
from mockserve.metrics.operations import ToolParsing
from mockserve.protocol.bodies import Usage
from mockserve.replies.call_style import CALL_KINDS
from mockserve.replies.generation import PlannedPrompt


class Accounting(NamedTuple):
    """Which costs the server reports. `media_tokens` counts those of pictures and recordings, by modality.

    Only chat says how many tokens a request has left in the cache; `block_size_tokens` is None for the others.
    """

    shows_prompt_details: bool = False
    counts_reasoning: bool = False
    shows_metrics: bool = False
    block_size_tokens: int | None = None
    media_tokens: Mapping[str, int] | None = None

    def running_usage(self, prompt: PlannedPrompt, number: int, num_tokens: int) -> Usage:
        """That of one choice so far."""
        reasoning = self._reasoning(prompt, number, num_tokens)
        return Usage(len(prompt.token_ids), num_tokens, num_reasoning_tokens=reasoning)

    def usage(
        self,
        prompts: Sequence[PlannedPrompt],
        completion_tokens: int,
        flight: Flight | None,
        num_reasoning_tokens: int | None = None,
    ) -> Usage:
        """That of a whole reply; `flight` is whose cached tokens stand for all.

        `num_reasoning_tokens` is known where not all choices are there at once.
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

    def metrics(self, flight: Flight | None, is_stream: bool) -> dict[str, Any] | None:
        """The latencies of a request with one choice; in a stream without what is null."""
        if not self.shows_metrics or flight is None:
            return None
        found = request_metrics(flight)
        return found if is_stream else {**found, "speculative_decoding": None}

    def _prompt_details(self, flight: Flight) -> dict[str, Any]:
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


def request_metrics(flight: Flight) -> dict[str, float]:
    """vLLM's per-request metrics, in simulated milliseconds; all that is known of a request that has its last token."""
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
    """Counts for the choices of one request; `after_reasoning`: the parser gets what follows the mark that ends it."""

    metrics: ToolParsing
    request_type: str
    after_reasoning: bool

    def whole(self, has_call: bool) -> None:
        """A whole choice was parsed in one go."""
        self.metrics.used(self.request_type, int(has_call), int(not has_call), is_stream=False)

    def streamed(self, answer: Answer, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a choice were parsed one by one."""
        deltas = list(answer.deltas or ())[:num_tokens]
        if self.after_reasoning:
            deltas = deltas[_end_of_reasoning(deltas) :]
        num_with_call = sum(any(each.kind in CALL_KINDS for each in found) for found in deltas)
        self.metrics.used(self.request_type, num_with_call, len(deltas) - num_with_call, is_stream=True)


def _end_of_reasoning(deltas: Sequence[Sequence[Delta]]) -> int:
    """The place of the token that ends the reasoning, which is the first one after it; the number of all without."""
    places = [place for place, found in enumerate(deltas) if any(each.kind is Kind.REASONING for each in found)]
    return places[-1] + 1 if places else 0
