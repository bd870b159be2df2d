"""Replies of POST /inference/v1/generate, field for field in vLLM's order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import Choice, Choices, Ending, Piece, Prompted, Usage, id_list, listed
from mockserve.protocol.json_text import json_array
from mockserve.protocol.logprob_shapes import LONG_TOKENS, LOWEST_LOGPROB, Candidate, Scored, ScoredTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBodies:
    """Bodies of one reply. What a choice says beside its ids - text, a message - comes as keys of its own."""

    id: str
    created: int
    model: str
    output_mode: str
    shows_prompt_ids: bool
    weight_version: str

    def opening_chunks(self, num_choices: int, prompted: Prompted, usage: Usage | None) -> list[dict[str, Any]]:
        return []

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = {
            "index": index,
            "finish_reason": None if ending is None else ending.finish_reason,
            "stop_reason": None if ending is None else ending.stop_reason,
            "token_ids": id_list(piece.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None if ending is None else self._weights(piece.num_tokens),
            **piece.delta,
            "logprobs": piece.logprobs,
        }
        # The prompt is told of in the first chunk only, and then the key is there for the others too, as a null.
        about_prompt = {"prompt_token_ids": id_list(piece.prompt_token_ids)} if piece.prompt_token_ids else {}
        return {
            "request_id": self.id,
            "usage": None if usage is None else usage.full(),
            **about_prompt,
            "output_mode": self.output_mode,
            "choices": [choice],
        }

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"request_id": self.id, "usage": usage.last(), "output_mode": self.output_mode, "choices": []}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        prompted = choices[0].prompted
        return {
            "request_id": self.id,
            "model": self.model,
            "created": self.created,
            "usage": usage.full(),
            "prompt_logprobs": prompted.logprobs,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": id_list(prompted.token_ids) if self.shows_prompt_ids else None,
            "mm_placeholders": None,
            "metrics": metrics,
            "kv_transfer_params": choices[-1].kv_transfer_params,
            "ec_transfer_params": None,
            "output_mode": self.output_mode,
            "choices": listed(choices, self._whole_choice),
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            **_ending(choice.ending),
            "token_ids": id_list(choice.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": self._weights(choice.num_tokens),
            **choice.content,
            "logprobs": choice.logprobs,
        }

    def _weights(self, num_tokens: int) -> list[dict[str, Any]]:
        return [{"version": self.weight_version, "start": 0, "end": num_tokens}]


def token_logprobs(tokens: ScoredTokens) -> dict[str, Any]:
    """Log-probabilities by token id."""
    if len(tokens) > LONG_TOKENS:
        return {"content": json_array(lambda: map(_token, tokens))}
    return {"content": [_token(each) for each in tokens]}


def _token(scored: Scored) -> dict[str, Any]:
    return {**_candidate(scored.chosen), "top_logprobs": [_candidate(shown) for shown in scored.shown]}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    logprob = max(candidate.logprob, LOWEST_LOGPROB)
    return {"token_id": candidate.token_id, "logprob": logprob, "rank": candidate.rank}


def _ending(ending: Ending) -> dict[str, Any]:
    return {"finish_reason": ending.finish_reason, "stop_reason": ending.stop_reason}
