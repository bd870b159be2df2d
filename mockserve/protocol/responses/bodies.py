"""A response as an object in vLLM's order of keys, and as numbered events of its items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mockserve.protocol.bodies import Ending, Event, Piece, Usage
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import EncodedItems
from mockserve.protocol.responses.items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    Item,
    NewId,
    call_item,
    custom_call_item,
    delta_logprobs,
    full_logprobs,
    message_item,
    reasoning_item,
    reasoning_part,
    text_part,
)
from mockserve.protocol.responses.requests import ResponseRequest
from mockserve.protocol.responses.tools import ToolNames, custom_input, partial_custom_input, shown_choice, shown_tool
from mockserve.protocol.sampling import SamplingParams

REASONING_KEYS = ("context", "effort", "generate_summary", "mode", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseObject:
    """Parts of a response that exist before its first token."""

    id: str
    created: int
    model: str
    api_request: ResponseRequest
    sampling: SamplingParams
    budget: int
    """Maximum number of output tokens."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """Parameters with which a later server fetches the blocks of the response."""

    @property
    def tool_names(self) -> ToolNames:
        """Names of calls of the response's tools."""
        return ToolNames.of(self.api_request.body.get("tools") or ())

    def body(
        self,
        status: str,
        output: Sequence[Item] = (),
        usage: Usage | None = None,
        metrics: Mapping[str, Any] | None = None,
        raw: tuple[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the whole object. `raw` are the model's input and output, if they are requested."""
        api_request = self.api_request.body
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": api_request.get("instructions"),
            "metadata": api_request.get("metadata"),
            "model": self.model,
            "object": "response",
            "output": list(output),
            **self._choices(),
            **self._settings(status),
            "usage": None if usage is None else response_usage(usage),
            "user": api_request.get("user"),
            **({} if metrics is None else {"metrics": metrics}),
            "presence_penalty": self.sampling.presence_penalty,
            "frequency_penalty": self.sampling.frequency_penalty,
            "kv_transfer_params": None if usage is None else self.kv_transfer_params,
            "ec_transfer_params": None,
            "input_messages": None if raw is None else raw[0],
            "output_messages": None if raw is None else raw[1],
        }

    def _choices(self) -> dict[str, Any]:
        """Return the choice of tools, and the tools themselves."""
        api_request, sampling = self.api_request.body, self.sampling
        parallel = api_request.get("parallel_tool_calls")
        return {
            "parallel_tool_calls": True if parallel is None else parallel,
            "temperature": sampling.temperature,
            "tool_choice": shown_choice(api_request.get("tool_choice", "auto")),
            "tools": [shown_tool(each) for each in api_request.get("tools") or ()],
            "top_p": 1.0 if sampling.is_greedy else sampling.top_p,
        }

    def _settings(self, status: str) -> dict[str, Any]:
        api_request = self.api_request.body
        cache = api_request.get("prompt_cache_options")
        reasoning = api_request.get("reasoning")
        return {
            "background": self.api_request.in_background,
            "max_output_tokens": self.budget,
            "max_tool_calls": api_request.get("max_tool_calls"),
            "previous_response_id": api_request.get("previous_response_id"),
            "prompt": None,
            "prompt_cache_options": None if cache is None else _echoed_cache_options(cache),
            "prompt_cache_key": api_request.get("prompt_cache_key"),
            "prompt_cache_retention": api_request.get("prompt_cache_retention"),
            "reasoning": None if reasoning is None else {name: reasoning.get(name) for name in REASONING_KEYS},
            "safety_identifier": api_request.get("safety_identifier"),
            "service_tier": api_request.get("service_tier", "auto"),
            "status": status,
            "text": _echoed_text(api_request.get("text")),
            "top_logprobs": (api_request.get("top_logprobs") or 0) if self.api_request.includes_logprobs else None,
            "truncation": api_request.get("truncation") or "disabled",
        }


def response_usage(usage: Usage) -> dict[str, Any]:
    """Return the counts in the format of a response. Counts per turn apply only to tools that the server itself
    calls."""
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
    """Return the model's text with its tokens."""
    return {"message": text, "tokens": list(token_ids), "type": "raw_message_tokens"}


def _echoed_cache_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "mode": options.get("mode", "implicit"),
        "ttl": options.get("ttl", "30m"),
        "comparison_response_id": options.get("comparison_response_id"),
    }


def _echoed_text(text: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the text format with the defaults of its members; unknown members are kept unchanged."""
    if text is None:
        return None
    requested = text.get("format")
    if requested is not None:
        keys = _SCHEMA_KEYS if requested["type"] == "json_schema" else ("type",)
        requested = {**{name: requested.get(name) for name in keys}, **requested}
    return {"format": None, "verbosity": None, **text, **({} if requested is None else {"format": requested})}


_SCHEMA_KEYS = ("name", "schema", "type", "description", "strict")


CALLS = ("call", "custom call")


@dataclass(slots=True)
class _OpenItem:
    """The output item that is open in a stream."""

    kind: str
    id: str
    text: str = ""
    name: str = ""
    call_id: str = ""
    namespace: str | None = None
    shown_input: str = ""
    """Part of a custom tool's input that has been sent."""
    logprobs: EncodedItems | None = None


@dataclass(slots=True)
class ResponseEvents:
    """Encodes a response as events. `raw` are the model's input and output, if they are requested."""

    response: ResponseObject
    new_id: NewId
    raw: tuple[Any, Any] | None = None
    output: list[Item] = field(default_factory=list)
    final: dict[str, Any] | None = None
    """The response object of the last event."""
    _number: int = 0
    _open: _OpenItem | None = None
    _names: ToolNames | None = None

    @property
    def starts_before_first_token(self) -> bool:
        return True

    @property
    def aborts_stream_when_refused(self) -> bool:
        # vLLM's response streams have no event for an error of the engine.
        return True

    def opening(self, _usage: Usage) -> list[Event]:
        body = self.response.body(IN_PROGRESS)
        return [self._event("response.created", response=body), self._event("response.in_progress", response=body)]

    def generated(self, piece: Piece) -> list[Event]:
        events: list[Event] = []
        delta = piece.delta
        if delta.get("reasoning") is not None:
            events += self._reasoning(delta["reasoning"])
        if delta.get("content"):
            events += self._content(delta["content"], piece.logprobs)
        for call in delta.get("tool_calls") or ():
            events += self._call(call)
        return events

    def ended(self, ending: Ending, usage: Usage, metrics: Mapping[str, Any] | None) -> list[Event]:
        status = INCOMPLETE if ending.finish_reason == "length" else COMPLETED
        events = self._end_item(status)
        self.final = self.response.body(status, self.output, usage, metrics, self.raw)
        return [*events, self._event(f"response.{status}", response=self.final)]

    def failed(self, error: ApiError) -> list[Event]:
        self.final = self.response.body("failed", self.output)
        return [{"type": "error", **error.body()}]

    def _reasoning(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != "reasoning":
            events += self._begin(_OpenItem("reasoning", f"rs_{self.new_id()}"))
        return [*events, self._delta_event(text, "response.reasoning_text.delta", content_index=0)]

    def _content(self, text: str, logprobs: Mapping[str, Any] | None) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != "message":
            events += self._begin(_OpenItem("message", f"msg_{self.new_id()}"))
        if logprobs is not None and self._open is not None:
            self._open.logprobs = self._open.logprobs or EncodedItems()
            self._open.logprobs.add(full_logprobs(logprobs))
        shown = delta_logprobs(logprobs)
        return [*events, self._delta_event(text, "response.output_text.delta", content_index=0, logprobs=shown)]

    def _call(self, call: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        function = call["function"]
        if call.get("id") is not None:
            events += self._begin(self._new_call(function["name"], call["id"]))
        arguments, item = function.get("arguments"), self._open
        if arguments and item is not None and item.kind == "custom call":
            item.text += arguments
            events += self._custom_input(item, partial_custom_input(item.text))
        elif arguments:
            events.append(self._delta_event(arguments, "response.function_call_arguments.delta"))
        return events

    def _new_call(self, name: str, call_id: str) -> _OpenItem:
        names = self._names = self._names or self.response.tool_names
        if name in names.custom:
            return _OpenItem("custom call", f"ctc_{self.new_id()}", name=name, call_id=call_id)
        namespace, local_name = names.of_call(name)
        return _OpenItem("call", f"fc_{self.new_id()}", name=local_name, call_id=call_id, namespace=namespace)

    def _custom_input(self, item: _OpenItem, text: str) -> list[Event]:
        """Return the event with the new part of the input; the whole input if it does not continue the part that was
        sent."""
        shown, item.shown_input = item.shown_input, text
        if text == shown:
            return []
        delta = text.removeprefix(shown)
        where: dict[str, Any] = {"item_id": item.id, "output_index": len(self.output)}
        return [self._event("response.custom_tool_call_input.delta", delta=delta, **where)]

    def _begin(self, item: _OpenItem) -> list[Event]:
        events = self._end_item(COMPLETED)
        self._open = item
        events.append(self._item_event("response.output_item.added", _started_item(item)))
        if item.kind not in CALLS:
            events.append(self._part_event("response.content_part.added", item, _part(item, EncodedItems())))
        return events

    def _delta_event(self, text: str, kind: str, **more: Any) -> Event:
        item = self._open
        assert item is not None
        item.text += text
        return self._event(kind, delta=text, item_id=item.id, output_index=len(self.output), **more)

    def _end_item(self, status: str) -> list[Event]:
        item = self._open
        if item is None:
            return []
        self._open = None
        events = self._end_text(item)
        if item.kind not in CALLS:
            events.append(self._part_event("response.content_part.done", item, _part(item, item.logprobs)))
        done = _finished_item(item, status)
        events.append(self._item_event("response.output_item.done", done))
        self.output.append(done)
        return events

    def _end_text(self, item: _OpenItem) -> list[Event]:
        where: dict[str, Any] = {"item_id": item.id, "output_index": len(self.output)}
        if item.kind == "call":
            done = self._event("response.function_call_arguments.done", arguments=item.text, **where)
            return [{**done, "name": item.name}]
        if item.kind == "custom call":
            text = custom_input(item.text)
            grown = self._custom_input(item, text)
            return [*grown, self._event("response.custom_tool_call_input.done", input=text, **where)]
        if item.kind == "reasoning":
            return [self._event("response.reasoning_text.done", content_index=0, text=item.text, **where)]
        return [self._event("response.output_text.done", content_index=0, logprobs=[], text=item.text, **where)]

    def _item_event(self, kind: str, item: Item) -> Event:
        return self._event(kind, item=item, output_index=len(self.output))

    def _part_event(self, kind: str, item: _OpenItem, part: dict[str, Any]) -> Event:
        return self._event(kind, content_index=0, item_id=item.id, output_index=len(self.output), part=part)

    def _event(self, kind: str, **fields: Any) -> Event:
        """Return the next event, with its keys in alphabetical order."""
        event = {**fields, "sequence_number": self._number}
        self._number += 1
        return {**{name: event[name] for name in sorted(event)}, "type": kind}


def _part(item: _OpenItem, logprobs: EncodedItems | None) -> dict[str, Any]:
    if item.kind == "reasoning":
        return reasoning_part(item.text)
    return text_part(item.text, None if logprobs is None else logprobs.array())


def _started_item(item: _OpenItem) -> Item:
    if item.kind == "call":
        return call_item(item.id, item.call_id, item.name, "", IN_PROGRESS, item.namespace)
    if item.kind == "custom call":
        return custom_call_item(item.id, item.call_id, item.name, "")
    if item.kind == "reasoning":
        return reasoning_item(item.id, None, IN_PROGRESS)
    return message_item(item.id, [], IN_PROGRESS)


def _finished_item(item: _OpenItem, status: str) -> Item:
    if item.kind == "call":
        return call_item(item.id, item.call_id, item.name, item.text, status, item.namespace)
    if item.kind == "custom call":
        return custom_call_item(item.id, item.call_id, item.name, custom_input(item.text))
    if item.kind == "reasoning":
        return reasoning_item(item.id, [_part(item, None)], status)
    return message_item(item.id, [_part(item, item.logprobs)], status)
