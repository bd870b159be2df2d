"""What the items of a response's input may look like: those kinds that are used, and the parts of their content."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.errors import Problem
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, OneOf, Text


@dataclass(frozen=True, slots=True)
class ByType:
    """An object of the kind that its `type` names; `unnamed` is what it is without one.

    With `lets_others_through` other names are for the reader to refuse.
    """

    kinds: Mapping[str, FieldType]
    unnamed: FieldType | None = None
    lets_others_through: bool = False

    def problems(self, value: Any, location: str) -> list[Problem]:
        if not isinstance(value, dict):
            return [Problem("dict_type", location, "Input should be a valid dictionary", value)]
        if "type" not in value:
            missing = [Problem("missing", f"{location}.type", "Field required", value)]
            return missing if self.unnamed is None else self.unnamed.problems(value, location)
        kind = value["type"]
        if isinstance(kind, str) and (kind in self.kinds or self.lets_others_through):
            return self.kinds[kind].problems(value, location) if kind in self.kinds else []
        return OneOf(tuple(self.kinds)).problems(kind, f"{location}.type")

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.kinds.values()]}


def _texts(*names: str) -> Record:
    return Record(dict.fromkeys(names, Text()), names, kind="dict_type")


_ANY_OBJECT: FieldType = MapOf(Anything())
_INPUT_PART: FieldType = ByType(
    {"input_text": _texts("text"), "input_image": _ANY_OBJECT, "input_file": _ANY_OBJECT, "input_audio": _ANY_OBJECT}
)
_OUTPUT_PART: FieldType = ByType({"output_text": _texts("text"), "refusal": _texts("refusal")})
_INPUT_CONTENT: FieldType = AnyOf((Text(), ListOf(_INPUT_PART)))
_SAID: FieldType = Record(
    {"content": _INPUT_CONTENT, "role": OneOf(("user", "assistant", "system", "developer"))},
    ("content", "role"),
    kind="dict_type",
)
_ANSWER: Mapping[str, FieldType] = {"content": ListOf(_OUTPUT_PART), "role": OneOf(("assistant",)), "id": Text()}
_ANSWERED: FieldType = Record(_ANSWER, ("content", "role"), kind="dict_type")
_ANSWERED_BEFORE: FieldType = Record(_ANSWER, ("content", "role", "id"), kind="dict_type")
"""An answer as it was given; only the id tells one without a type from what a client puts into its mouth."""
_RESULT: FieldType = Record({"call_id": Nullable(Text()), "output": _INPUT_CONTENT}, ("output",), kind="dict_type")
_THOUGHT: FieldType = Record(
    {
        "id": Text(),
        "summary": ListOf(ByType({"summary_text": _texts("text")})),
        "content": Nullable(ListOf(ByType({"reasoning_text": _texts("text")}))),
        "encrypted_content": Nullable(Text()),
    },
    ("summary",),
    kind="dict_type",
)

ITEM: FieldType = ByType(
    {
        "message": AnyOf((_SAID, _ANSWERED)),
        "function_call": _texts("arguments", "call_id", "name"),
        "function_call_output": _RESULT,
        "reasoning": _THOUGHT,
        "custom_tool_call": _texts("call_id", "input", "name"),
        "custom_tool_call_output": _RESULT,
    },
    unnamed=AnyOf((_SAID, _ANSWERED_BEFORE)),
    lets_others_through=True,
)
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
