"""Text completion replies, field for field in vLLM's order."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mockserve.protocol.bodies import Choice, Choices, Piece, Prompted, Usage, id_list, listed, weight_versions
from mockserve.protocol.json_text import JsonBlocks


class CompletionBodies(NamedTuple):
    """Bodies of one completion reply. `ends_with_usage`: a usage chunk follows, which then carries the fingerprint."""

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False
    shows_prompt_ids: bool = False
    weight_version: str | None = None
    """Shown where the client asks for it."""

    def opening_chunks(self, num_choices: int, prompted: Prompted, usage: Usage | None) -> list[dict[str, Any]]:
        return []

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = {
            "index": index,
            "text": piece.delta,
            "logprobs": piece.logprobs,
            "finish_reason": None if ending is None else ending.finish_reason,
            "stop_reason": None if ending is None else ending.stop_reason,
            "prompt_token_ids": id_list(piece.prompt_token_ids),
            "token_ids": id_list(piece.token_ids),
            "weight_versions": weight_versions(self.weight_version if ending is not None else None, piece.num_tokens),
        }
        chunk = self._head([choice])
        if usage is not None:
            chunk["usage"] = usage.counts()
        if ending is not None and not self.ends_with_usage:
            chunk["system_fingerprint"] = self.fingerprint
        chunk["kv_transfer_params"] = piece.kv_transfer_params
        return chunk

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head([]), "usage": usage.last(), "system_fingerprint": self.fingerprint}
        return chunk if metrics is None else {**chunk, "metrics": metrics}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            **self._head(listed(choices, self._whole_choice)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "kv_transfer_params": choices[0].kv_transfer_params,
            "ec_transfer_params": None,
            "metrics": metrics,
        }

    def _head(self, choices: list[dict[str, Any]] | JsonBlocks) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "text": choice.content,
            "logprobs": choice.logprobs,
            "finish_reason": choice.ending.finish_reason,
            "stop_reason": choice.ending.stop_reason,
            "token_ids": id_list(choice.token_ids),
            "prompt_logprobs": choice.prompted.logprobs,
            "prompt_token_ids": id_list(choice.prompted.token_ids) if self.shows_prompt_ids else None,
            "routed_experts": None,
            "weight_versions": weight_versions(self.weight_version, choice.num_tokens),
        }
