"""Chat replies, field for field in vLLM's order: it sends what was explicitly set, hence the uneven nulls."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mockserve.protocol.bodies import Choice, Choices, Piece, Prompted, Usage, id_list, listed, weight_versions
from mockserve.protocol.completions.chat_deltas import content_delta
from mockserve.protocol.json_text import JsonBlocks

CHUNK = "chat.completion.chunk"


class ChatBodies(NamedTuple):
    """Bodies of one chat reply. `ends_with_usage`: a usage chunk follows, which then carries the fingerprint.

    `role` is that of the answer, and `echoed` the text that it continues, if the client wants that repeated.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False
    role: str = "assistant"
    echoed: str = ""
    shows_prompt_ids: bool = False
    weight_version: str | None = None
    """Shown where the client asks for it."""

    def opening_chunks(self, num_choices: int, prompted: Prompted, usage: Usage | None) -> list[dict[str, Any]]:
        about_prompt = {
            "prompt_token_ids": id_list(prompted.token_ids) if self.shows_prompt_ids else None,
            "prompt_text": prompted.text,
        }
        role = {"role": self.role, "content": ""}
        chunks = [self._opening(index, role, usage) | about_prompt for index in range(num_choices)]
        if self.echoed:
            echo = content_delta(self.echoed)
            chunks += [self._opening(index, echo, usage) for index in range(num_choices)]
        return chunks

    def _opening(self, index: int, delta: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
        chunk = self._head(CHUNK, [_choice(index, delta, None, None)])
        return chunk if usage is None else {**chunk, "usage": usage.running()}

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = _choice(index, piece.delta, piece.logprobs, None if ending is None else ending.finish_reason)
        if ending is not None:
            choice["stop_reason"] = ending.stop_reason
        choice["token_ids"] = id_list(piece.token_ids)
        if ending is not None:
            choice["weight_versions"] = weight_versions(self.weight_version, piece.num_tokens)
        chunk = self._head(CHUNK, [choice])
        if usage is not None:
            chunk["usage"] = usage.running()
        if ending is not None and not self.ends_with_usage:
            chunk["system_fingerprint"] = self.fingerprint
        chunk["kv_transfer_params"] = piece.kv_transfer_params
        return chunk

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head(CHUNK, []), "usage": usage.last(), "system_fingerprint": self.fingerprint}
        return chunk if metrics is None else {**chunk, "metrics": metrics}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        prompted = choices[0].prompted
        return {
            **self._head("chat.completion", listed(choices, self._whole_choice)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "prompt_logprobs": prompted.logprobs,
            "prompt_token_ids": id_list(prompted.token_ids) if self.shows_prompt_ids else None,
            "prompt_text": prompted.text,
            "kv_transfer_params": choices[-1].kv_transfer_params,
            "ec_transfer_params": None,
            "metrics": metrics,
        }

    def _head(self, kind: str, choices: list[dict[str, Any]] | JsonBlocks) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message = choice.content
        if self.echoed:
            message = {**message, "content": self.echoed + (message["content"] or "")}
        return {
            "index": index,
            "message": message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.ending.finish_reason,
            "stop_reason": choice.ending.stop_reason,
            "token_ids": id_list(choice.token_ids),
            "routed_experts": None,
            "weight_versions": weight_versions(self.weight_version, choice.num_tokens),
        }


def _choice(
    index: int, delta: dict[str, Any], logprobs: Mapping[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
