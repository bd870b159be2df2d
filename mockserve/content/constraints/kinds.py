"""The form that a request demands of its answer: JSON, a regular expression, a choice, a grammar or structural tags."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, TypeAlias

from mockserve.content.constraints.expressions import Choice, Grammar, Text, matching_text
from mockserve.content.constraints.grammar_lexer import GrammarError
from mockserve.content.constraints.grammar_parser import parse_grammar
from mockserve.content.constraints.json_instances import instance_text
from mockserve.content.constraints.json_schema import SchemaError
from mockserve.content.constraints.json_schema_check import TOO_DEEP, check_schema, unimplemented_keywords
from mockserve.content.constraints.regex_parser import RegexError, parse_regex
from mockserve.content.constraints.size import is_small_demand
from mockserve.content.constraints.structural_tags import check_tag, tag_text
from mockserve.options.taste import ANY, Taste
from mockserve.protocol.errors import ApiError, bad_value, late
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.refusals import no_constraint

ROOM_CHARS = 120
GENEROSITIES = (2, 1, 0)
"""How much of what is optional to say, the most first."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """A value of a JSON schema."""

    schema: Any
    taste: Taste = ANY


@dataclass(frozen=True, slots=True)
class GrammarForm:
    """A sentence of a grammar; choices and regular expressions are grammars too."""

    grammar: Grammar


@dataclass(frozen=True, slots=True)
class TagForm:
    """Free text with structural tags."""

    tag: Any


@dataclass(frozen=True, slots=True)
class DeferredForm:
    """A demand, as JSON, that is read when a text is written: it may take long to read."""

    demand: bytes


Constraint: TypeAlias = JsonForm | GrammarForm | TagForm | DeferredForm


def constrained_text(constraint: Constraint, random: Random, generosity: int) -> str:
    """A text of the form: about the least for `generosity` 0, most of what is optional for 2.

    Raises ApiError when nothing has that form.
    """
    try:
        match constraint:
            case JsonForm(schema, taste):
                return instance_text(schema, random, generosity, taste)
            case GrammarForm(grammar):
                return matching_text(grammar, random, ROOM_CHARS * generosity // 2)
            case TagForm(tag):
                return tag_text(tag, random, generosity)
            case DeferredForm(demand):
                found = read_deferred(demand)
                return "" if found is None else constrained_text(found, random, generosity)
    except (SchemaError, RegexError) as error:
        raise late(ApiError(f"Grammar error: {error}")) from None


def json_form(schema: Any, taste: Taste = ANY) -> JsonForm:
    """The form of a JSON schema. Raises ApiError for what is none."""
    try:
        check_schema(schema)
    except (SchemaError, RegexError) as error:
        message = str(error)
        raise ApiError(message if message.startswith("The JSON schema") else f"Grammar error: {message}") from None
    return JsonForm(schema, taste)


def demanded_form(body: Mapping[str, Any]) -> Constraint | None:
    """The same as `read_constraint`, but what may take long to read is deferred."""
    demand = _demand_of(body)
    if demand is None:
        return None
    if is_small_demand(demand):
        return read_demand(demand)
    try:
        return DeferredForm(compact_json(demand))
    except RecursionError:
        raise late(ApiError(TOO_DEEP)) from None


@lru_cache(maxsize=1)
def read_deferred(demand: bytes) -> Constraint | None:
    """The same as `read_demand`, which for the latest demand is not done again."""
    return read_demand(json.loads(demand))


def read_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """What `response_format` and `structured_outputs` demand, if anything. Raises ApiError in vLLM's words."""
    demand = _demand_of(body)
    return None if demand is None else read_demand(demand)


def _demand_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a body demands, as fields of `structured_outputs`."""
    wanted = body.get("structured_outputs")
    given = dict(wanted) if isinstance(wanted, Mapping) else None
    return _with_response_format(given, body.get("response_format"))


def read_demand(given: Mapping[str, Any]) -> Constraint | None:
    """The form that the fields of `structured_outputs` demand, if any. Raises ApiError in vLLM's words."""
    present = next((name for name in _READERS if given.get(name) is not None), None)
    if present is None:
        return None
    try:
        return _READERS[present](given)
    except ApiError as error:
        raise error if present == "structural_tag" else late(error) from None


def _with_response_format(given: dict[str, Any] | None, response_format: Any) -> dict[str, Any] | None:
    """The demands of either field as those of `structured_outputs`."""
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "json_object":
        return {**(given or {}), "json_object": True}
    if kind == "json_schema":
        described = response_format.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        if schema is None and given is None:
            raise no_constraint({})
        return given if schema is None else {**(given or {}), "json": schema}
    if kind == "structural_tag":
        return {**(given or {}), "structural_tag": response_format}
    return given


def _read_json(given: Mapping[str, Any]) -> Constraint:
    schema = given["json"]
    if isinstance(schema, str):
        if not schema.strip():
            raise ApiError("structured_outputs.json cannot be an empty string")
        try:
            schema = json.loads(schema)
        except ValueError:
            raise ApiError("Invalid JSON grammar specification.") from None
    form = json_form(schema)
    unknown = unimplemented_keywords(schema)
    if unknown:
        raise ApiError(f"Grammar error: Unimplemented keys: {json.dumps(unknown)}")
    return form


def _read_regex(given: Mapping[str, Any]) -> Constraint:
    pattern = str(given["regex"])
    if "\0" in pattern:
        raise ApiError("structured_outputs.regex must not contain a NUL character ('\\x00')")
    try:
        grammar = Grammar(parse_regex(pattern))
    except RegexError as error:
        shown = json.dumps(pattern, ensure_ascii=False)
        mark = f"   1 | start: /{pattern}/\n              ^"
        raise ApiError(f"Grammar error: at 1(8): invalid regex {shown} (in regex): {error}\n{mark}") from None
    if not grammar.can_end:
        raise ApiError("Grammar error: regex too large")
    return GrammarForm(grammar)


def _read_choice(given: Mapping[str, Any]) -> Constraint:
    choices = given["choice"]
    if not isinstance(choices, list) or not choices:
        raise ApiError(f"Choice '{choices}' cannot be an empty list")
    return GrammarForm(Grammar(Choice(tuple(Text(str(each)) for each in choices))))


def _read_grammar(given: Mapping[str, Any]) -> Constraint:
    source = str(given["grammar"])
    if not source.strip():
        raise ApiError("structured_outputs.grammar cannot be an empty string")
    try:
        return GrammarForm(parse_grammar(source))
    except GrammarError as error:
        raise ApiError(str(error)) from None


def _read_json_object(given: Mapping[str, Any]) -> Constraint:
    if given["json_object"] is not True:
        raise ApiError(
            "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs"
        )
    return JsonForm({"type": "object"})


def _read_structural_tag(given: Mapping[str, Any]) -> Constraint:
    tag = given["structural_tag"]
    param = "structured_outputs" if isinstance(tag, str) else "response_format"
    try:
        tag = json.loads(tag) if isinstance(tag, str) else tag
        check_tag(tag)
    except ValueError:  # what is no JSON, no tag, no schema, no pattern or no grammar
        raise bad_value(f"Invalid {param} structural_tag specification.", param) from None
    return TagForm(tag)


_READERS = {
    "json": _read_json,
    "regex": _read_regex,
    "choice": _read_choice,
    "grammar": _read_grammar,
    "json_object": _read_json_object,
    "structural_tag": _read_structural_tag,
}
