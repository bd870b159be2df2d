"""Chat and text replies, field by field in vLLM's order. vLLM sends explicitly set fields, hence uneven nulls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mockserve.protocol.bodies import Choice, Choices, Piece, PromptOutput, Usage, id_list, listed, weight_versions
from mockserve.protocol.json_text import JsonBlocks

CHUNK = "chat.completion.chunk"


class ChatBodies(NamedTuple):
    """Bodies of one chat reply. `ends_with_usage`: a usage chunk follows, which has the fingerprint.

    `role` is the role of the answer. `echoed` is the text that the answer continues, if the request has `echo`.
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
    """Version to include if the client requests it."""

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        about_prompt = {
            "prompt_token_ids": id_list(prompt_output.token_ids) if self.shows_prompt_ids else None,
            "prompt_text": prompt_output.text,
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
        prompt_output = choices[0].prompt_output
        return {
            **self._head("chat.completion", listed(choices, self._whole_choice)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "prompt_logprobs": prompt_output.logprobs,
            "prompt_token_ids": id_list(prompt_output.token_ids) if self.shows_prompt_ids else None,
            "prompt_text": prompt_output.text,
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


TOOL_CALL_PREFIX = "chatcmpl-tool-"
KEY_ORDER = ("content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function; `arguments` are JSON as text."""

    id: str
    name: str
    arguments: str


def content_delta(text: str) -> dict[str, Any]:
    return {"content": text}


def reasoning_delta(text: str) -> dict[str, Any]:
    return {"reasoning": text}


def tool_name_delta(call: int, call_id: str, name: str, arguments: str | None = None) -> dict[str, Any]:
    """The first event of call number `call`."""
    function = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": call_id, "type": "function", "index": call, "function": function}]}


def tool_arguments_delta(call: int, text: str, null_name: bool = False, null_id: bool = False) -> dict[str, Any]:
    """Return a further part of the arguments of call number `call`, with a null name or id for parsers that send
    nulls."""
    function = {"name": None, "arguments": text} if null_name else {"arguments": text}
    part = {"index": call, "function": function}
    return {"tool_calls": [{"id": None, **part} if null_id else part]}


def merge_deltas(deltas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge deltas of one event: texts joined, calls one after the other."""
    if len(deltas) == 1:
        return deltas[0]
    found: dict[str, Any] = {}
    for delta in deltas:
        for key, value in delta.items():
            if key == "tool_calls":
                found[key] = _joined_calls([*found.get(key, []), *value])
            elif found.get(key) is None:
                found[key] = value
            elif value is not None:
                found[key] += value
    return {key: found[key] for key in KEY_ORDER if key in found}


def _joined_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the parts of each call: the name of the first, the arguments of all."""
    joined: dict[int, dict[str, Any]] = {}
    for call in calls:
        known = joined.get(call["index"])
        if known is None:
            joined[call["index"]] = {**call, "function": dict(call["function"])}
        else:
            function = known["function"]
            function["arguments"] = function.get("arguments", "") + call["function"].get("arguments", "")
    return list(joined.values())


def whole_message(role: str, content: str | None, reasoning: str | None, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The message of a whole reply, in vLLM's order of keys."""
    tool_calls = [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in calls
    ]
    return {
        "role": role,
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": tool_calls} if tool_calls else {}),
        "reasoning": reasoning,
    }


class CompletionBodies(NamedTuple):
    """Bodies of one completion reply. `ends_with_usage`: a usage chunk follows, which has the fingerprint."""

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False
    shows_prompt_ids: bool = False
    weight_version: str | None = None
    """Version to include if the client requests it."""

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
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
            "prompt_logprobs": choice.prompt_output.logprobs,
            "prompt_token_ids": id_list(choice.prompt_output.token_ids) if self.shows_prompt_ids else None,
            "routed_experts": None,
            "weight_versions": weight_versions(self.weight_version, choice.num_tokens),
        }
