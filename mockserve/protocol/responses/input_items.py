"""Items of a response's input: their schemas from `item_forms.json`, and their conversion to chat messages."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mockserve.protocol.errors import Problem, bad_value, unhandled_error, unreadable
from mockserve.protocol.reading.containers import AnyOf, Iterable, ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, Number, OneOf, Text
from mockserve.protocol.responses.tools import arguments_of, flat_name

FILE = Path(__file__).with_name("item_forms.json")
_PLAIN: Mapping[str, FieldType] = {
    "str": Text(),
    "int": Integer(),
    "float": Number(),
    "bool": Flag(),
    "any": Anything(),
}


class ItemForms:
    """All schemas by name, and the schemas of an item in the order in which vLLM tries them."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table["forms"]
        self._records: dict[str, FieldType] = {}
        self._items = [self._type(each) for each in _flat(table["items"])]
        self._by_type: dict[str, list[FieldType]] = {}
        self._untyped: list[FieldType] = []
        for name, form in zip(_flat(table["items"]), self._items, strict=True):
            given = self._table[name[1:]]
            for kind in _literals(given["fields"].get("type")):
                self._by_type.setdefault(kind, []).append(form)
            if "type" not in given["required"]:
                self._untyped.append(form)

    def problems(self, value: Any, location: str) -> list[Problem]:
        """Return the problems of an item: none if it matches a schema, else the problems with each schema."""
        if any(not form.problems(value, location) for form in self._candidates(value)):
            return []
        return AnyOf(tuple(self._items)).problems(value, location)

    def fits(self, name: str, value: Any) -> bool:
        """Whether a value has the form of this name."""
        return not self._type(f"#{name}").problems(value, "")

    def part_problems(self, value: Any, location: str) -> list[Problem]:
        """Return the problems of a part of an answer."""
        parts = AnyOf((self._type("#ResponseOutputTextParam"), self._type("#ResponseOutputRefusalParam")))
        return parts.problems(value, location)

    def _candidates(self, value: Any) -> list[FieldType]:
        """Return the schemas that match the item's type: most items need only one check."""
        if not isinstance(value, dict):
            return []
        kind = value.get("type")
        return self._by_type.get(kind, []) if isinstance(kind, str) else self._untyped

    def _type(self, written: Any) -> FieldType:
        if isinstance(written, str):
            return self._record(written[1:]) if written.startswith("#") else _PLAIN[written]
        kind, *inner = written
        if kind == "literal":
            return OneOf(tuple(inner))
        if kind == "union":
            return AnyOf(tuple(self._type(each) for each in inner))
        (of,) = (self._type(each) for each in inner)
        containers: Mapping[str, FieldType] = {
            "null": Nullable(of),
            "list": ListOf(of),
            "sequence": ListOf(of, is_sequence=True),
            "iterable": Iterable(of),
            "dict": MapOf(of),
        }
        return containers[kind]

    def _record(self, name: str) -> FieldType:
        if name not in self._records:
            form = self._table[name]
            fields = {field: self._type(each) for field, each in form["fields"].items()}
            kind = "model_attributes_type" if form["is_model"] else "dict_type"
            record = Record(fields, tuple(form["required"]), kind=kind, ignores_unknown=not form["is_model"])
            self._records[name] = Named(form["name"], record)
        return self._records[name]


@lru_cache(maxsize=1)
def item_forms() -> ItemForms:
    """Return vLLM's schemas."""
    return ItemForms(json.loads(FILE.read_text(encoding="utf-8")))


def _flat(items: list[Any]) -> list[str]:
    """Yield the names of schemas, including nested unions."""
    return [name for each in items for name in ([each] if isinstance(each, str) else _flat(each[1:]))]


def _literals(written: Any) -> list[str]:
    """The values of a type that is a literal or null."""
    if isinstance(written, list) and written[0] == "null":
        return _literals(written[1])
    return list(written[1:]) if isinstance(written, list) and written[0] == "literal" else []


NEW_ID = "new"


class Item:
    """An item of a response's input."""

    def problems(self, value: Any, location: str) -> list[Problem]:
        if isinstance(value, dict):
            kind = value.get("type")
            if kind == "function_call" and is_call(value):
                return []
            if kind == "reasoning":
                value = {"id": NEW_ID, **value}
                if is_reasoning(value):
                    return []
            if kind == "message" and value.get("role") == "assistant" and is_answer(value):
                return []
        return item_forms().problems(_with_detail(value), location)

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


def is_call(item: Mapping[str, Any]) -> bool:
    """Whether the type of an item is a function call in vLLM."""
    return item_forms().fits("ResponseFunctionToolCall", item)


def is_reasoning(item: Mapping[str, Any]) -> bool:
    """Whether the type of an item is reasoning in vLLM."""
    return item_forms().fits("ResponseReasoningItem", {"id": NEW_ID, **item})


def is_answer(item: Mapping[str, Any]) -> bool:
    """Whether vLLM treats an assistant's message as an earlier answer, to which it adds missing fields."""
    if not isinstance(item.get("content"), list):
        return False
    answered = {"id": NEW_ID, "status": "completed", **item, "content": _annotated(item["content"])}
    return item_forms().fits("ResponseOutputMessage", answered)


def answer_problems(content: Any) -> list[Problem]:
    """Return the problems of the first part of an answer that is neither a text nor a refusal."""
    for index, part in enumerate(content):
        if problems := item_forms().part_problems(part, str(index)):
            return problems
    return []


def _annotated(content: list[Any]) -> list[Any]:
    return [
        {"annotations": [], **part} if isinstance(part, dict) and part.get("type") == "output_text" else part
        for part in content
    ]


def _with_detail(value: Any) -> Any:
    """Return an item whose images have a `detail`."""
    content = value.get("content") if isinstance(value, Mapping) else None
    if not isinstance(content, list):
        return value
    detailed = [
        {"detail": "auto", **part} if isinstance(part, dict) and part.get("type") == "input_image" else part
        for part in content
    ]
    return {**value, "content": detailed}


ITEM: FieldType = Item()
FORM: FieldType = AnyOf(
    (
        Named("ResponseFormatText", Record({"type": OneOf(("text",))}, ("type",))),
        Named(
            "ResponseFormatTextJSONSchemaConfig",
            Record(
                {
                    "name": Text(),
                    "schema": MapOf(Anything()),
                    "type": OneOf(("json_schema",)),
                    "description": Nullable(Text()),
                    "strict": Nullable(Flag()),
                },
                ("name", "schema", "type"),
            ),
        ),
        Named("ResponseFormatJSONObject", Record({"type": OneOf(("json_object",))}, ("type",))),
    )
)
"""Schema of the requested format of an answer."""


CALL_RESULTS = ("function_call_output", "custom_tool_call_output")
UNFINISHED = ("in_progress", "incomplete")


def chat_messages(
    instructions: str | None,
    given: str | Sequence[Mapping[str, Any]],
    earlier: Sequence[Mapping[str, Any]],
    earlier_output: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the conversation: instructions, the messages of the continued response, its output, the input.

    Instructions do not carry over from response to response. Raises ApiError for an unsupported item.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    messages += [dict(each) for each in earlier if each.get("role") != "system"]
    messages += [
        {"role": "assistant", "content": part["text"]}
        for item in earlier_output
        if item["type"] == "message"
        for part in item["content"]
    ]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    added: list[dict[str, Any]] = []
    for item in given:
        _add(added, item)
    return [*messages, *added]


def continues_last_item(given: str | Sequence[Mapping[str, Any]]) -> bool:
    """Whether the input ends with an unfinished answer, which is to be continued."""
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in UNFINISHED


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add the content of an item; extend the last message if it is an assistant's without such content."""
    kind = item.get("type")
    if kind == "custom_tool_call" or (kind == "function_call" and is_call(item)):
        _add_call(messages, item)
    elif kind == "reasoning" and is_reasoning(item):
        _add_part(messages, "reasoning", _reasoning(item))
    elif kind in CALL_RESULTS:
        content = _content(item.get("output"))
        messages.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
    elif "role" not in item:
        raise bad_value(f"Unsupported input item type: {kind}", "input")
    elif item["role"] == "assistant" and (said := _answer_text(item)) is not None:
        _add_part(messages, "content", said)
    else:
        content = {"content": _content(item["content"])} if "content" in item else {}
        messages.append({"role": item["role"], **content})


def _answer_text(item: Mapping[str, Any]) -> str | None:
    """Return the text of an answer; None if it is passed to the template unchanged. Raises ApiError where vLLM
    fails."""
    content = item["content"]
    if item.get("type") == "message" and is_answer(item):
        if not content:
            raise unhandled_error("list index out of range")
        if content[0]["type"] == "refusal":
            raise unhandled_error("'ResponseOutputRefusal' object has no attribute 'text'")
    elif item.get("type") == "message" and "id" in item and "status" in item:
        if problems := answer_problems(content):
            raise unreadable("ValidatorIterator", problems)
        return None
    if isinstance(content, str):
        return content
    text = content[0].get("text") if content else None
    return None if text is None else str(text)


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    if item["type"] == "custom_tool_call":
        arguments = arguments_of(item.get("input") or "")
    else:
        arguments = item.get("arguments", "")
    name = item.get("name", "")
    if item.get("namespace") and item["type"] == "function_call":
        name = flat_name(item["namespace"], name)
    function = {"name": name, "arguments": arguments}
    call = {"id": item.get("call_id", ""), "type": "function", "function": function}
    last = _last_of_assistant(messages)
    if last is None:
        messages.append({"role": "assistant", "tool_calls": [call]})
    else:
        last.setdefault("tool_calls", []).append(call)


def _add_part(messages: list[dict[str, Any]], name: str, text: str) -> None:
    last = _last_of_assistant(messages)
    if last is None or last.get(name) is not None:
        messages.append({"role": "assistant", name: text})
    else:
        last[name] = text


def _last_of_assistant(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else None


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise bad_value("Encrypted content is not supported.", "input")
    parts = item.get("content") or item.get("summary") or [{"text": ""}]
    return str(parts[0].get("text", ""))


def _content(content: Any) -> Any:
    """Return content with the part types of chat."""
    if not isinstance(content, list):
        return content
    return [_part(each) if isinstance(each, Mapping) else each for each in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url") or ""}}
    return dict(part)
