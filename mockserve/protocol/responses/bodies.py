"""The object that a response is, in vLLM's order of keys: what was asked is repeated, what came is added."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.bodies import Usage
from mockserve.protocol.responses.items import Item
from mockserve.protocol.responses.requests import ResponseRequest
from mockserve.protocol.responses.tool_fields import shown_choice, shown_tool
from mockserve.protocol.responses.tools import ToolNames

REASONING_KEYS = ("context", "effort", "generate_summary", "mode", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseObject:
    """What is known of a response before its first token."""

    id: str
    created: int
    model: str
    asked: ResponseRequest
    sampling: Sampling
    budget: int
    """Most tokens that it may have."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """What its end tells a later server about the blocks it left."""

    @property
    def tool_names(self) -> ToolNames:
        """How calls of its tools are named."""
        return ToolNames.of(self.asked.body.get("tools") or ())

    def body(
        self,
        status: str,
        output: Sequence[Item] = (),
        usage: Usage | None = None,
        metrics: Mapping[str, Any] | None = None,
        raw: tuple[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """The whole object. `raw` are input and output as the model has them, if those are to be shown."""
        asked = self.asked.body
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": asked.get("instructions"),
            "metadata": asked.get("metadata"),
            "model": self.model,
            "object": "response",
            "output": list(output),
            **self._choices(),
            **self._settings(status),
            "usage": None if usage is None else response_usage(usage),
            "user": asked.get("user"),
            **({} if metrics is None else {"metrics": metrics}),
            "presence_penalty": self.sampling.presence_penalty,
            "frequency_penalty": self.sampling.frequency_penalty,
            "kv_transfer_params": None if usage is None else self.kv_transfer_params,
            "ec_transfer_params": None,
            "input_messages": None if raw is None else raw[0],
            "output_messages": None if raw is None else raw[1],
        }

    def _choices(self) -> dict[str, Any]:
        """How the answer is chosen, and between which tools."""
        asked, sampling = self.asked.body, self.sampling
        parallel = asked.get("parallel_tool_calls")
        return {
            "parallel_tool_calls": True if parallel is None else parallel,
            "temperature": sampling.temperature,
            "tool_choice": shown_choice(asked.get("tool_choice", "auto")),
            "tools": [shown_tool(each) for each in asked.get("tools") or ()],
            "top_p": 1.0 if sampling.is_greedy else sampling.top_p,
        }

    def _settings(self, status: str) -> dict[str, Any]:
        asked = self.asked.body
        cache = asked.get("prompt_cache_options")
        reasoning = asked.get("reasoning")
        return {
            "background": self.asked.in_background,
            "max_output_tokens": self.budget,
            "max_tool_calls": asked.get("max_tool_calls"),
            "previous_response_id": asked.get("previous_response_id"),
            "prompt": None,
            "prompt_cache_options": None if cache is None else _echoed_cache_options(cache),
            "prompt_cache_key": asked.get("prompt_cache_key"),
            "prompt_cache_retention": asked.get("prompt_cache_retention"),
            "reasoning": None if reasoning is None else {name: reasoning.get(name) for name in REASONING_KEYS},
            "safety_identifier": asked.get("safety_identifier"),
            "service_tier": asked.get("service_tier", "auto"),
            "status": status,
            "text": _echoed_text(asked.get("text")),
            "top_logprobs": (asked.get("top_logprobs") or 0) if self.asked.includes_logprobs else None,
            "truncation": asked.get("truncation") or "disabled",
        }


def response_usage(usage: Usage) -> dict[str, Any]:
    """Counts as a response has them; those per turn are for tools that the server itself calls."""
    details = usage.prompt_details or {}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": details.get("cached_tokens") or 0,
            "cache_write_tokens": details.get("created_cache_tokens") or 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.num_reasoning_tokens or 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def raw_message(text: str, token_ids: Sequence[int]) -> dict[str, Any]:
    """Text as the model has it, with its tokens."""
    return {"message": text, "tokens": list(token_ids), "type": "raw_message_tokens"}


def _echoed_cache_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "mode": options.get("mode", "implicit"),
        "ttl": options.get("ttl", "30m"),
        "comparison_response_id": options.get("comparison_response_id"),
    }


def _echoed_text(text: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if text is None:
        return None
    wanted = text.get("format")
    if wanted is not None and wanted["type"] == "json_schema":
        keys = ("name", "schema", "type", "description", "strict")
        wanted = {name: wanted.get(name) for name in keys}
    elif wanted is not None:
        wanted = {"type": wanted["type"]}
    return {"format": wanted, "verbosity": text.get("verbosity")}
