"""Text completion replies, field for field in vLLM's order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import Choice, Ending, Usage, with_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBodies:
    """Bodies of one completion reply. `ends_with_usage`: a usage chunk follows, which then carries the fingerprint."""

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False

    def opening_chunk(self, index: int, usage: Usage | None) -> dict[str, Any] | None:
        return None

    def text_chunk(self, index: int, text: str, usage: Usage | None) -> dict[str, Any]:
        chunk = with_tail(self._head([_choice(index, text, None)]), _counts(usage), None)
        return {**chunk, "kv_transfer_params": None}

    def ending_chunk(self, index: int, text: str, ending: Ending, usage: Usage | None) -> dict[str, Any]:
        fingerprint = None if self.ends_with_usage else self.fingerprint
        chunk = with_tail(self._head([_choice(index, text, ending)]), _counts(usage), fingerprint)
        return {**chunk, "kv_transfer_params": None}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return with_tail(self._head([]), usage.counts(), self.fingerprint)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return {
            **self._head([_whole_choice(index, each) for index, each in enumerate(choices)]),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _head(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _choice(index: int, text: str, ending: Ending | None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": None if ending is None else ending.finish_reason,
        "stop_reason": None if ending is None else ending.stop_reason,
        "prompt_token_ids": None,
        "token_ids": None,
        "weight_versions": None,
    }


def _whole_choice(index: int, choice: Choice) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.text,
        "logprobs": None,
        "finish_reason": choice.ending.finish_reason,
        "stop_reason": choice.ending.stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
        "weight_versions": None,
    }


def _counts(usage: Usage | None) -> dict[str, Any] | None:
    return None if usage is None else usage.counts()
