"""What a chat message may look like: one of the shapes that vLLM tries, in its order."""

from mockserve.protocol.reading.containers import AnyOf, Iterable, ListOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, OneOf, Text

_TEXT_OR_PARTS: FieldType = AnyOf((Text(), Iterable(Anything())))


def _shape(name: str, fields: dict[str, FieldType], required: tuple[str, ...]) -> FieldType:
    return Named(name, Record(fields, required, kind="dict_type"))


def _role(role: str) -> dict[str, FieldType]:
    return {"role": OneOf((role,))}


MESSAGE: FieldType = AnyOf(
    (
        _shape(
            "ChatCompletionDeveloperMessageParam",
            {"content": _TEXT_OR_PARTS, **_role("developer"), "name": Text()},
            ("content", "role"),
        ),
        _shape(
            "ChatCompletionSystemMessageParam",
            {"content": _TEXT_OR_PARTS, **_role("system"), "name": Text()},
            ("content", "role"),
        ),
        _shape(
            "ChatCompletionUserMessageParam",
            {"content": _TEXT_OR_PARTS, **_role("user"), "name": Text()},
            ("content", "role"),
        ),
        _shape(
            "ChatCompletionAssistantMessageParam",
            {
                **_role("assistant"),
                "content": Nullable(_TEXT_OR_PARTS),
                "name": Text(),
                "refusal": Nullable(Text()),
                "tool_calls": Iterable(Anything()),
            },
            ("role",),
        ),
        _shape(
            "ChatCompletionToolMessageParam",
            {"content": _TEXT_OR_PARTS, **_role("tool"), "tool_call_id": Text()},
            ("content", "role", "tool_call_id"),
        ),
        _shape(
            "ChatCompletionFunctionMessageParam",
            {"content": Nullable(Text()), "name": Text(), **_role("function")},
            ("content", "name", "role"),
        ),
        _shape(
            "CustomChatCompletionMessageParam",
            {
                "role": Text(),
                "content": AnyOf((Text(), ListOf(Anything()))),
                "name": Text(),
                "tool_call_id": Nullable(Text()),
                "tool_calls": Nullable(ListOf(Anything())),
            },
            ("role",),
        ),
        Named("Message", Record({"author": Anything(), "content": ListOf(Anything())}, ("author", "content"))),
    )
)

TOOL_CALL: FieldType = AnyOf(
    (
        _shape(
            "ChatCompletionMessageFunctionToolCallParam",
            {
                "id": Text(),
                "function": Record({"arguments": Text(), "name": Text()}, ("arguments", "name"), kind="dict_type"),
                "type": OneOf(("function",)),
            },
            ("id", "function", "type"),
        ),
        _shape(
            "ChatCompletionMessageCustomToolCallParam",
            {
                "id": Text(),
                "custom": Record({"input": Text(), "name": Text()}, ("input", "name"), kind="dict_type"),
                "type": OneOf(("custom",)),
            },
            ("id", "custom", "type"),
        ),
    )
)
"""One call of an assistant message."""
