"""Fields of the bodies of POST /v1/messages and POST /v1/messages/count_tokens, in the order of vLLM's errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import Problem
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, Number, OneOf, Text, as_integer

LEAST_THINKING_TOKENS = 1024
MAX_STOP_SEQUENCES = 4
TOOL_CHANGES = ("tool_addition", "tool_removal")
BLOCK_KINDS = (
    "text",
    "image",
    "tool_use",
    "tool_result",
    "tool_reference",
    "thinking",
    "redacted_thinking",
    *TOOL_CHANGES,
)


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object of one of several kinds, distinguished by its `type`, which is part of the location of its problems."""

    kinds: Mapping[str, FieldType]

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, dict):
            message = "Input should be a valid dictionary or object to extract fields from"
            return [Problem("model_attributes_type", location, message, value)]
        if "type" not in value:
            message, context = "Unable to extract tag using discriminator 'type'", {"discriminator": "'type'"}
            return [Problem("union_tag_not_found", location, message, value, context)]
        kind = value["type"]
        if not isinstance(kind, str) or kind not in self.kinds:
            expected = ", ".join(repr(each) for each in self.kinds)
            message = f"Input tag '{kind}' found using 'type' does not match any of the expected tags: {expected}"
            context = {"discriminator": "'type'", "tag": str(kind), "expected_tags": expected}
            return [Problem("union_tag_invalid", location, message, value, context)]
        return self.kinds[kind].problems(value, f"{location}.{kind}")

    def schema(self) -> dict[str, Any]:
        return {"oneOf": [kind.schema() for kind in self.kinds.values()]}


@dataclass(frozen=True, slots=True)
class Positive:
    """A whole number above zero."""

    name: str

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = Integer().problems(value, location)
        if wrong or as_integer(value) > 0:
            return wrong
        return [value_problem(f"{self.name} must be positive", location, value)]

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "exclusiveMinimum": 0}


def value_problem(message: str, location: str, value: Any) -> Problem:
    """Return the problem of a value that fails a custom check of vLLM."""
    return Problem("value_error", location, f"Value error, {message}", value, {"error": ValueError(message)})


@dataclass(frozen=True, slots=True)
class NamedChoice:
    """A tool choice, which requires a name for the type `tool`."""

    inner: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = self.inner.problems(value, location)
        if wrong or value["type"] != "tool" or value.get("name"):
            return wrong
        return [value_problem("tool_choice.name is required when type is 'tool'", location, value)]

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


@dataclass(frozen=True, slots=True)
class ToolChangeBlock:
    """A block of content, which requires a tool if it changes the tools."""

    inner: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = self.inner.problems(value, location)
        if wrong or value["type"] not in TOOL_CHANGES:
            return wrong
        tool = value.get("tool")
        if tool is None:
            return [value_problem(f"tool is required for {value['type']} blocks", location, value)]
        if value["type"] == "tool_removal" and tool["type"] != "tool_reference":
            return [value_problem("tool_removal only accepts a tool_reference", location, value)]
        return []

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


@dataclass(frozen=True, slots=True)
class ToolChangeMessage:
    """A message, which may change the tools only with the role `system`."""

    inner: FieldType

    def problems(self, value: Any, location: str) -> list[Problem]:
        wrong = self.inner.problems(value, location)
        if wrong or value["role"] == "system" or isinstance(value["content"], str):
            return wrong
        kind = next((each["type"] for each in value["content"] if each["type"] in TOOL_CHANGES), None)
        if kind is None:
            return []
        message = f'{kind} blocks are only allowed in messages with role "system"'
        return [value_problem(message, location, value)]

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


_FREE_OBJECT: FieldType = Nullable(MapOf(Anything()))
_TEXT: FieldType = Nullable(Text())
_FLAG: FieldType = Nullable(Flag())

_TOOL: FieldType = Record(
    {
        "name": Text(),
        "description": _TEXT,
        "input_schema": MapOf(Anything()),
        "strict": _FLAG,
        "defer_loading": _FLAG,
    },
    ("name", "input_schema"),
)
_TOOL_CHANGE: FieldType = Nullable(
    Tagged(
        {
            "tool_reference": Record({"name": Text()}, ("name",)),
            "tool_definition": Record({"definition": _TOOL}, ("definition",)),
        }
    )
)
_BLOCK: FieldType = Record(
    {
        "type": OneOf(BLOCK_KINDS),
        "text": _TEXT,
        "source": _FREE_OBJECT,
        "id": _TEXT,
        "tool_use_id": _TEXT,
        "name": _TEXT,
        "input": _FREE_OBJECT,
        "content": Nullable(AnyOf((Text(), ListOf(MapOf(Anything()))))),
        "is_error": _FLAG,
        "tool_name": _TEXT,
        "thinking": _TEXT,
        "signature": _TEXT,
        "data": _TEXT,
        "tool": _TOOL_CHANGE,
    },
    ("type",),
)
_CONTENT: FieldType = AnyOf((Text(), ListOf(ToolChangeBlock(_BLOCK))))
_MESSAGES: FieldType = ListOf(
    ToolChangeMessage(
        Record({"role": OneOf(("user", "assistant", "system")), "content": _CONTENT}, ("role", "content"))
    )
)
_THINKING: FieldType = Nullable(
    Tagged(
        {
            "enabled": Record({"budget_tokens": Integer(at_least=LEAST_THINKING_TOKENS)}, ("budget_tokens",)),
            "disabled": Record({}),
            "adaptive": Record({}),
        }
    )
)
_TOOLS: FieldType = Nullable(ListOf(_TOOL))
_TOOL_CHOICE: FieldType = Nullable(
    NamedChoice(
        Record(
            {"type": OneOf(("auto", "any", "tool", "none")), "name": _TEXT, "disable_parallel_tool_use": _FLAG},
            ("type",),
        )
    )
)
_OUTPUT_CONFIG: FieldType = Nullable(
    Record(
        {
            "effort": Nullable(OneOf(("low", "medium", "high", "xhigh", "max"))),
            "format": Nullable(Record({"schema": _FREE_OBJECT, "type": OneOf(("json_schema",))})),
        }
    )
)

COUNT_FIELDS: Mapping[str, FieldType] = {
    "model": Text(),
    "messages": _MESSAGES,
    "output_config": _OUTPUT_CONFIG,
    "system": Nullable(_CONTENT),
    "thinking": _THINKING,
    "tool_choice": _TOOL_CHOICE,
    "tools": _TOOLS,
    "chat_template_kwargs": _FREE_OBJECT,
}
COUNT_REQUIRED = ("model", "messages")

MESSAGES_FIELDS: Mapping[str, FieldType] = {
    "model": Text(),
    "messages": _MESSAGES,
    "max_tokens": Positive("max_tokens"),
    "metadata": _FREE_OBJECT,
    "output_config": _OUTPUT_CONFIG,
    "thinking": _THINKING,
    "stop_sequences": Nullable(ListOf(Text(), MAX_STOP_SEQUENCES)),
    "stream": _FLAG,
    "system": Nullable(_CONTENT),
    "temperature": Nullable(Number()),
    "tool_choice": _TOOL_CHOICE,
    "tools": _TOOLS,
    "top_k": Nullable(Integer()),
    "top_p": Nullable(Number()),
    "mm_payload": OneOf(("tensors", "none")),
    "return_mm_kwargs": _FLAG,
    "cache_salt": _TEXT,
    "watermarking": _FLAG,
    "kv_transfer_params": _FREE_OBJECT,
    "ec_transfer_params": _FREE_OBJECT,
    "vllm_xargs": _FREE_OBJECT,
    "chat_template_kwargs": _FREE_OBJECT,
}
MESSAGES_REQUIRED = ("model", "messages", "max_tokens")
