"""Chat replies, field for field in vLLM's order: it sends what was explicitly set, hence the uneven nulls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import Choice, Ending, Usage, with_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBodies:
    """Bodies of one chat reply. `ends_with_usage`: a usage chunk follows, which then carries the fingerprint."""

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False

    def opening_chunk(self, index: int, usage: Usage | None) -> dict[str, Any] | None:
        choice = _choice(index, {"role": "assistant", "content": ""}, None)
        chunk = with_tail(self._head("chat.completion.chunk", [choice]), _running(usage), None)
        return {**chunk, "prompt_token_ids": None, "prompt_text": None}

    def text_chunk(self, index: int, text: str, usage: Usage | None) -> dict[str, Any]:
        choice = {**_choice(index, {"content": text}, None), "token_ids": None}
        chunk = with_tail(self._head("chat.completion.chunk", [choice]), _running(usage), None)
        return {**chunk, "kv_transfer_params": None}

    def ending_chunk(self, index: int, text: str, ending: Ending, usage: Usage | None) -> dict[str, Any]:
        choice = {
            **_choice(index, {"content": text}, ending.finish_reason),
            "stop_reason": ending.stop_reason,
            "token_ids": None,
            "weight_versions": None,
        }
        fingerprint = None if self.ends_with_usage else self.fingerprint
        chunk = with_tail(self._head("chat.completion.chunk", [choice]), _running(usage), fingerprint)
        return {**chunk, "kv_transfer_params": None}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return with_tail(self._head("chat.completion.chunk", []), usage.counts(), self.fingerprint)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return {
            **self._head("chat.completion", [_whole_choice(index, each) for index, each in enumerate(choices)]),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _whole_choice(index: int, choice: Choice) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.ending.finish_reason,
        "stop_reason": choice.ending.stop_reason,
        "token_ids": None,
        "routed_experts": None,
        "weight_versions": None,
    }


def _running(usage: Usage | None) -> dict[str, Any] | None:
    """Running counts have one null more in chat than elsewhere."""
    return None if usage is None else {**usage.counts(), "completion_tokens_details": None}
