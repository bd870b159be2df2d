"""A response told event by event: items begin, grow and end one after the other, and all events are numbered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mockserve.protocol.bodies import Ending, Piece, Usage
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import EncodedItems
from mockserve.protocol.narration import Event
from mockserve.protocol.responses.bodies import ResponseObject
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
from mockserve.protocol.responses.tools import ToolNames, begun_input, custom_input

CALLS = ("call", "custom call")


@dataclass(slots=True)
class _Open:
    """The item that is being told."""

    kind: str
    id: str
    text: str = ""
    name: str = ""
    call_id: str = ""
    namespace: str | None = None
    shown_input: str = ""
    """What was told of the input of a custom tool."""
    logprobs: EncodedItems | None = None


@dataclass(slots=True)
class ResponseEvents:
    """Tells a response. `raw` are its input and output as the model has them, if those are to be shown."""

    response: ResponseObject
    new_id: NewId
    raw: tuple[Any, Any] | None = None
    output: list[Item] = field(default_factory=list)
    final: dict[str, Any] | None = None
    """The response as the last event has it."""
    _number: int = 0
    _open: _Open | None = None
    _names: ToolNames | None = None

    @property
    def opens_at_once(self) -> bool:
        return True

    def opening(self, _usage: Usage) -> list[Event]:
        body = self.response.body(IN_PROGRESS)
        return [self._event("response.created", response=body), self._event("response.in_progress", response=body)]

    def said(self, piece: Piece) -> list[Event]:
        told: list[Event] = []
        delta = piece.delta
        if delta.get("reasoning") is not None:
            told += self._reasoning(delta["reasoning"])
        if delta.get("content"):
            told += self._content(delta["content"], piece.logprobs)
        for call in delta.get("tool_calls") or ():
            told += self._call(call)
        return told

    def ended(self, ending: Ending, usage: Usage) -> list[Event]:
        status = INCOMPLETE if ending.finish_reason == "length" else COMPLETED
        told = self._end_item(status)
        self.final = self.response.body(status, self.output, usage, raw=self.raw)
        return [*told, self._event(f"response.{status}", response=self.final)]

    def failed(self, error: ApiError) -> list[Event]:
        self.final = self.response.body("failed", self.output)
        return [{"type": "error", **error.body()}]

    def _reasoning(self, text: str) -> list[Event]:
        told: list[Event] = []
        if self._open is None or self._open.kind != "reasoning":
            told += self._begin(_Open("reasoning", f"rs_{self.new_id()}"))
        return [*told, self._grown(text, "response.reasoning_text.delta", content_index=0)]

    def _content(self, text: str, logprobs: Mapping[str, Any] | None) -> list[Event]:
        told: list[Event] = []
        if self._open is None or self._open.kind != "message":
            told += self._begin(_Open("message", f"msg_{self.new_id()}"))
        if logprobs is not None and self._open is not None:
            self._open.logprobs = self._open.logprobs or EncodedItems()
            self._open.logprobs.add(full_logprobs(logprobs))
        shown = delta_logprobs(logprobs)
        return [*told, self._grown(text, "response.output_text.delta", content_index=0, logprobs=shown)]

    def _call(self, call: Mapping[str, Any]) -> list[Event]:
        told: list[Event] = []
        function = call["function"]
        if call.get("id") is not None:
            told += self._begin(self._new_call(function["name"], call["id"]))
        arguments, item = function.get("arguments"), self._open
        if arguments and item is not None and item.kind == "custom call":
            item.text += arguments
            told += self._custom_input(item, begun_input(item.text))
        elif arguments:
            told.append(self._grown(arguments, "response.function_call_arguments.delta"))
        return told

    def _new_call(self, name: str, call_id: str) -> _Open:
        names = self._names = self._names or self.response.tool_names
        if name in names.custom:
            return _Open("custom call", f"ctc_{self.new_id()}", name=name, call_id=call_id)
        namespace, local_name = names.of_call(name)
        return _Open("call", f"fc_{self.new_id()}", name=local_name, call_id=call_id, namespace=namespace)

    def _custom_input(self, item: _Open, text: str) -> list[Event]:
        """What is new of the input; an input that does not go on as it was told is told as a whole."""
        shown, item.shown_input = item.shown_input, text
        if text == shown:
            return []
        delta = text.removeprefix(shown)
        where: dict[str, Any] = {"item_id": item.id, "output_index": len(self.output)}
        return [self._event("response.custom_tool_call_input.delta", delta=delta, **where)]

    def _begin(self, item: _Open) -> list[Event]:
        told = self._end_item(COMPLETED)
        self._open = item
        told.append(self._item_event("response.output_item.added", _begun(item)))
        if item.kind not in CALLS:
            told.append(self._part_event("response.content_part.added", item, _part(item, EncodedItems())))
        return told

    def _grown(self, text: str, kind: str, **more: Any) -> Event:
        item = self._open
        assert item is not None
        item.text += text
        return self._event(kind, delta=text, item_id=item.id, output_index=len(self.output), **more)

    def _end_item(self, status: str) -> list[Event]:
        item = self._open
        if item is None:
            return []
        self._open = None
        told = self._end_text(item)
        if item.kind not in CALLS:
            told.append(self._part_event("response.content_part.done", item, _part(item, item.logprobs)))
        done = _done(item, status)
        told.append(self._item_event("response.output_item.done", done))
        self.output.append(done)
        return told

    def _end_text(self, item: _Open) -> list[Event]:
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

    def _part_event(self, kind: str, item: _Open, part: dict[str, Any]) -> Event:
        return self._event(kind, content_index=0, item_id=item.id, output_index=len(self.output), part=part)

    def _event(self, kind: str, **fields: Any) -> Event:
        """The next event, with its keys in the order of the alphabet."""
        event = {**fields, "sequence_number": self._number}
        self._number += 1
        return {**{name: event[name] for name in sorted(event)}, "type": kind}


def _part(item: _Open, logprobs: EncodedItems | None) -> dict[str, Any]:
    if item.kind == "reasoning":
        return reasoning_part(item.text)
    return text_part(item.text, None if logprobs is None else logprobs.array())


def _begun(item: _Open) -> Item:
    if item.kind == "call":
        return call_item(item.id, item.call_id, item.name, "", IN_PROGRESS, item.namespace)
    if item.kind == "custom call":
        return custom_call_item(item.id, item.call_id, item.name, "")
    if item.kind == "reasoning":
        return reasoning_item(item.id, None, IN_PROGRESS)
    return message_item(item.id, [], IN_PROGRESS)


def _done(item: _Open, status: str) -> Item:
    if item.kind == "call":
        return call_item(item.id, item.call_id, item.name, item.text, status, item.namespace)
    if item.kind == "custom call":
        return custom_call_item(item.id, item.call_id, item.name, custom_input(item.text))
    if item.kind == "reasoning":
        return reasoning_item(item.id, [_part(item, None)], status)
    return message_item(item.id, [_part(item, item.logprobs)], status)
