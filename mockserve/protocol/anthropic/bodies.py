"""Replies of Anthropic's Messages API, whole and as events, without null fields."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.anthropic.requests import anthropic_error
from mockserve.protocol.bodies import Choice, Ending, Event, Piece, Usage
from mockserve.protocol.errors import ApiError

NewSignature = Callable[[], str]


@dataclass(frozen=True, slots=True)
class AnthropicReply:
    """Parts of a reply that exist before its first token. `new_signature` draws the signature of a thinking block."""

    id: str
    model: str
    new_signature: NewSignature


def message(reply: AnthropicReply, choice: Choice, usage: Usage) -> dict[str, Any]:
    """A whole reply."""
    generated = choice.content
    content: list[dict[str, Any]] = []
    if generated["reasoning"]:
        content.append({"type": "thinking", "thinking": generated["reasoning"], "signature": reply.new_signature()})
    if generated["content"]:
        content.append({"type": "text", "text": generated["content"]})
    calls = generated.get("tool_calls", ())
    content += [
        {
            "type": "tool_use",
            "id": each["id"],
            "name": each["function"]["name"],
            "input": _parsed(each["function"]["arguments"]),
        }
        for each in calls
    ]
    reason, sequence = _stop_reason(choice.ending, bool(calls), bool(calls))
    body = {**_head(reply), "content": content or [{"type": "text", "text": ""}], "model": reply.model}
    body |= {"stop_reason": reason, "stop_sequence": sequence}
    body |= {"usage": _usage(usage), "kv_transfer_params": choice.kv_transfer_params}
    return {name: value for name, value in body.items() if value is not None}


class AnthropicEvents:
    """Encodes a reply as Anthropic's events. Text after a tool call is held back until the call's block has ended."""

    def __init__(self, reply: AnthropicReply) -> None:
        self._reply = reply
        self._index = 0
        self._open: str | None = None
        self._call = -1
        self._arguments = ""
        self._pending_text = ""

    @property
    def starts_before_first_token(self) -> bool:
        return False

    @property
    def aborts_stream_when_refused(self) -> bool:
        return False

    def opening(self, usage: Usage) -> list[Event]:
        body = {**_head(self._reply), "content": [], "model": self._reply.model}
        body |= {"stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}
        return [{"type": "message_start", "message": body}]

    def generated(self, piece: Piece) -> list[Event]:
        events: list[Event] = []
        delta = piece.delta
        if delta.get("reasoning"):
            events += self._in_block("thinking", "thinking_delta", "thinking", delta["reasoning"])
        if delta.get("content"):
            if self._open == "tool_use":
                self._pending_text += delta["content"]
            else:
                events += self._in_block("text", "text_delta", "text", delta["content"])
        for call in delta.get("tool_calls") or ():
            events += self._tool_call(call)
        return events

    def ended(self, ending: Ending, usage: Usage, _metrics: Mapping[str, Any] | None) -> list[Event]:
        uses_tool = self._call >= 0
        reason, sequence = _stop_reason(ending, uses_tool, uses_tool and _is_json(self._arguments))
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            *self._end_block(),
            {"type": "message_delta", "delta": delta, "usage": _usage(usage)},
            {"type": "message_stop"},
        ]

    def failed(self, error: ApiError) -> list[Event]:
        return [*self._end_block(), {**anthropic_error(error).body()}]

    def _in_block(self, block: str, kind: str, key: str, text: str) -> list[Event]:
        opened = [] if self._open == block else [*self._end_block(), self._begin({"type": block, key: ""})]
        return [*opened, self._delta({"type": kind, key: text})]

    def _tool_call(self, call: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        function = call["function"]
        if call.get("id") is not None:
            events += self._end_block()
            self._call, self._arguments = call["index"], ""
            events.append(self._begin({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}))
        arguments = function.get("arguments")
        if arguments:
            self._arguments += arguments
            events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def _begin(self, block: dict[str, Any]) -> Event:
        self._open = block["type"]
        return {"type": "content_block_start", "content_block": block, "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "delta": delta, "index": self._index}

    def _end_block(self) -> list[Event]:
        """End the open block, and write a whole block for text that was held back."""
        events: list[Event] = []
        if self._open is not None:
            if self._open == "thinking":
                events.append(self._delta({"type": "signature_delta", "signature": self._reply.new_signature()}))
            events.append({"type": "content_block_stop", "index": self._index})
            self._open = None
            self._index += 1
        if self._pending_text:
            text, self._pending_text = self._pending_text, ""
            events += [*self._in_block("text", "text_delta", "text", text), *self._end_block()]
        return events


def _head(reply: AnthropicReply) -> dict[str, Any]:
    return {"id": reply.id, "type": "message", "role": "assistant"}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return Anthropic's counts: input tokens exclude tokens of the cache."""
    found: dict[str, Any] = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    details = usage.prompt_details
    if details is not None:
        created, read = details["created_cache_tokens"] or 0, details["cached_tokens"]
        found["input_tokens"] = max(0, usage.prompt_tokens - created - read)
        found |= {"cache_creation_input_tokens": created, "cache_read_input_tokens": read}
    return found


def _stop_reason(ending: Ending, uses_tool: bool, is_complete: bool) -> tuple[str | None, str | None]:
    """Return the stop reason and the stop string. A call that a stop string cut short must not be executed."""
    reason = ending.finish_reason
    if reason == "length":
        return "max_tokens", None
    if reason not in ("stop", "tool_calls"):
        return None, None
    if is_complete:
        return "tool_use", None
    if isinstance(ending.stop_reason, str):
        return "stop_sequence", ending.stop_reason
    return ("tool_use" if reason == "tool_calls" or uses_tool else "end_turn"), None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _parsed(arguments: str) -> Any:
    """Parse arguments. Raises JSONDecodeError for the arguments of a call that was cut short."""
    return json.loads(arguments) if arguments else {}
