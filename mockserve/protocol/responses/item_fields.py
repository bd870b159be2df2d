"""What the items of a response's input may look like, and what vLLM adds to them before it looks."""

from collections.abc import Mapping
from typing import Any

from mockserve.protocol.errors import Problem
from mockserve.protocol.reading.containers import AnyOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, OneOf, Text
from mockserve.protocol.responses.item_forms import item_forms

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
                if is_thought(value):
                    return []
            if kind == "message" and value.get("role") == "assistant" and is_answer(value):
                return []
        return item_forms().problems(_with_detail(value), location)

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


def is_call(item: Mapping[str, Any]) -> bool:
    """Whether vLLM reads an item of this type as a function call."""
    return item_forms().fits("ResponseFunctionToolCall", item)


def is_thought(item: Mapping[str, Any]) -> bool:
    """Whether vLLM reads an item of this type as reasoning."""
    return item_forms().fits("ResponseReasoningItem", {"id": NEW_ID, **item})


def is_answer(item: Mapping[str, Any]) -> bool:
    """Whether vLLM reads a message of an assistant as an earlier answer, to which it adds what is missing."""
    if not isinstance(item.get("content"), list):
        return False
    answered = {"id": NEW_ID, "status": "completed", **item, "content": _annotated(item["content"])}
    return item_forms().fits("ResponseOutputMessage", answered)


def answer_problems(content: Any) -> list[Problem]:
    """What is wrong with the first part of an answer that is no text and no refusal."""
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
    """An item whose images have a degree of detail."""
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
"""The form that an answer is to have."""
