"""What a reply says it cost: tokens, cached ones among them, and on request the latencies of the request itself."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blis_sim.engine.units import Micros
from mockserve.flight import Flight
from mockserve.protocol.bodies import Usage
from mockserve.replies.planned_prompt import PlannedPrompt


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
