"""The constraint of a request on its answer, from its fields or from a JSON shape that the prompt describes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mockserve.generation.structured_outputs.json_schema import TYPE_WORDS
from mockserve.options.content import AUTO, StructuredOutputsConfig
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import ALL_CONSTRAINTS, check_one_constraint

MAX_NESTING = 64
TAG_WRAPPER_NESTING = 16


class Demand(NamedTuple):
    """One constraint: `kind` is a field of `structured_outputs`, `value` is its value."""

    kind: str
    value: Any
    config: StructuredOutputsConfig = AUTO
    described_schema: Any = None
    """Schema that the prompt describes for an answer in JSON; hidden from the backends."""


def demand_of(body: Mapping[str, Any], config: StructuredOutputsConfig = AUTO) -> Demand | None:
    """Return the constraint of `response_format` and `structured_outputs`, if there is one.

    Raises ApiError for several constraints or an empty one.
    """
    given = body.get("structured_outputs")
    fields = dict(given) if isinstance(given, Mapping) else None
    overrides = _format_overrides(body.get("response_format"))
    if overrides is not None:
        fields = {**(fields or {}), **overrides}
        shown = {"structural_tag": json.dumps(overrides["structural_tag"])} if "structural_tag" in overrides else {}
        check_one_constraint({**fields, **shown})
    kind = next((name for name in ALL_CONSTRAINTS if fields and fields.get(name) is not None), None)
    return None if kind is None or fields is None else Demand(kind, fields[kind], config)


def _format_overrides(response_format: Any) -> dict[str, Any] | None:
    """The fields of `structured_outputs` that a `response_format` sets."""
    requested = response_format if isinstance(response_format, Mapping) else {}
    kind = requested.get("type")
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        described = requested.get("json_schema")
        return {"json": described.get("schema") if isinstance(described, Mapping) else None}
    if kind == "structural_tag":
        return {"structural_tag": requested}
    return None


def check_demand(demand: Demand) -> None:
    """Raise ApiError for constraints that vLLM refuses with any backend."""
    kind, value = demand.kind, demand.value
    if kind == "choice" and value == []:
        raise ApiError("Choice '[]' cannot be an empty list")
    if kind in ("grammar", "json", "structural_tag") and isinstance(value, str) and not value.strip():
        raise ApiError(f"structured_outputs.{kind} cannot be an empty string")
    if kind == "json":
        check_nesting(value, MAX_NESTING)
    if kind == "structural_tag":
        check_nesting(value, MAX_NESTING + TAG_WRAPPER_NESTING)
    if kind == "json_object" and value is False:
        raise ApiError(
            "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs"
        )
    if kind == "regex" and "\0" in value:
        raise ApiError("structured_outputs.regex must not contain a NUL character ('\\x00')")


def check_nesting(value: Any, limit: int) -> None:
    """Raise ApiError for JSON whose objects and arrays are nested deeper than `limit`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except RecursionError:
            raise _too_deep() from None
        except ValueError:
            return
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(f"The JSON schema is nested too deeply: objects and arrays may nest at most {MAX_NESTING} levels")


MAX_CHARS = 10_000
"""Number of characters at each end of a message that are searched."""

MAX_TRIES = 60
"""Maximum number of opening braces tried in one message."""

_DECODER = json.JSONDecoder()
_CUES = re.compile(r"json|schema|example|format|structure|fields", re.IGNORECASE)
_PLACEHOLDER_NOTE = "# note: the value you produce "
_NOTES: Mapping[str, Mapping[str, str]] = {
    "must be a single int value": {"type": "integer"},
    "must be a single float value": {"type": "number"},
    "must be True or False": {"type": "boolean"},
}
"""DSPy's descriptions of values of types other than text."""

_ONE_OF = re.compile(r"must exactly match \(no extra characters\) one of: (.*)")
_ADHERES = "must adhere to the JSON schema: "


def schema_in_messages(messages: Sequence[str]) -> dict[str, Any] | None:
    """Return the schema that messages describe: the last complete schema, else one inferred from the first example.

    Returns None if the messages describe no object.
    """
    found = [each for text in messages for each in _json_objects(text)]
    schemas = [each for each, _ in found if _is_schema(each)]
    if schemas:
        return schemas[-1]
    examples = [each for each, is_announced in found if is_announced and each]
    return _schema_like(examples[0]) if examples else None


def _json_objects(text: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the JSON objects in a text, each with whether the text before it mentions JSON or an example."""
    if len(text) > 2 * MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n{text[-MAX_CHARS:]}"
    at = 0
    for _ in range(MAX_TRIES):
        start = text.find("{", at)
        if start < 0:
            return
        try:
            value, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        if isinstance(value, dict):
            yield value, _CUES.search(text, 0, start) is not None


def _is_schema(value: Mapping[str, Any]) -> bool:
    members = value.get("properties")
    return isinstance(members, Mapping) and all(isinstance(each, Mapping | bool) for each in members.values())


def _schema_like(value: Any) -> dict[str, Any]:
    """Infer a schema from an example value."""
    if isinstance(value, dict):
        members = {name: _schema_like(each) for name, each in value.items()}
        return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": _schema_like(value[0])} if value else {"type": "array", "items": _TEXT}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int | float):
        return {"type": "integer" if isinstance(value, int) else "number"}
    return _schema_of_text(value) if isinstance(value, str) else _TEXT


def _schema_of_text(text: str) -> dict[str, Any]:
    """Infer a schema from a text: a type by its name, a placeholder with a note, else a text."""
    _, has_note, note = text.partition(_PLACEHOLDER_NOTE)
    if not has_note:
        kind = TYPE_WORDS.get(text.strip("<>[] ").lower())
        return {"type": kind} if kind else _TEXT
    options = _ONE_OF.match(note)
    if options is not None:
        return {"enum": options[1].split("; ")}
    if note.startswith(_ADHERES):
        try:
            found = json.loads(note.removeprefix(_ADHERES))
        except (ValueError, RecursionError):
            return _TEXT
        return found if isinstance(found, dict) else _TEXT
    return dict(_NOTES.get(note.strip(), _TEXT))


_TEXT: dict[str, Any] = {"type": "string"}
