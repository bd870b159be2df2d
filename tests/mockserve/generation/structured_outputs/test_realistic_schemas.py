"""Schemas of real programs get arguments and content with all required members, valid where that is possible."""

import json
import re
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mockserve.generation.answer import Kind
from mockserve.generation.structured_outputs.demand import Demand
from mockserve.generation.structured_outputs.json_instances import lenient_text
from mockserve.generation.structured_outputs.kinds import JsonForm, build_constraint, constrained_text
from mockserve.generation.structured_outputs.structural_tags import tag_text
from mockserve.generation.tool_calls import ToolUse, call_script, read_tool_use
from mockserve.protocol.errors import ApiError
from tests.mockserve.generation.structured_outputs.realistic_schemas import (
    LOOSELY_DESCRIBED,
    MCP_TOOLS,
    OPENAPI_FORMATS,
    PATTERNS,
    PYDANTIC_TYPES,
    TEXT,
    UNOBEYABLE,
    model_of,
    object_of,
)

SEEDS_AND_VERBOSITIES = [(seed, verbosity) for seed in range(3) for verbosity in (0, 1, 2)]
OBEYABLE: Mapping[str, Any] = {
    **{f"format {name}": object_of(user=TEXT, value={**TEXT, "format": name}) for name in OPENAPI_FORMATS},
    **{f"pattern {each}": object_of(user=TEXT, value={**TEXT, "pattern": each}) for each in PATTERNS},
    **MCP_TOOLS,
}


def arguments_of(schema: Any, **fields: Any) -> Iterator[Any]:
    """Yield arguments of a function that a request offers with a schema, from several seeds."""
    function = {"name": "f", "parameters": schema, **fields}
    use = read_tool_use({"tools": [{"type": "function", "function": function}], "tool_choice": "required"}, 1, 0)
    assert isinstance(use, ToolUse)
    for seed, verbosity in SEEDS_AND_VERBOSITIES:
        script = call_script(use, use.functions, Random(seed), verbosity)
        yield json.loads(next(each.text for each in script if each.kind is Kind.TOOL_ARGUMENTS))


def contents_of(schema: Any) -> Iterator[Any]:
    """Yield contents that vLLM's default backends constrain by a schema; none where they refuse it."""
    try:
        form = build_constraint(Demand("json", schema))
    except ApiError:
        return
    for seed, verbosity in SEEDS_AND_VERBOSITIES:
        yield json.loads(constrained_text(form, Random(seed), verbosity))


@pytest.mark.parametrize("name", PYDANTIC_TYPES)
def test_pydantic_accepts_arguments_and_content_of_its_types(name: str) -> None:
    model = model_of(name)
    schema = model.model_json_schema()
    for value in (*arguments_of(schema), *contents_of(schema)):
        assert {"title", "value"} <= value.keys()
        Draft202012Validator(schema).validate(value)
        if name not in LOOSELY_DESCRIBED:
            model.model_validate_json(json.dumps(value))


@pytest.mark.parametrize("name", OBEYABLE)
def test_arguments_and_content_are_valid(name: str) -> None:
    schema = OBEYABLE[name]
    for value in (*arguments_of(schema), *contents_of(schema)):
        assert set(schema.get("required", ())) <= value.keys()
        Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize("name", UNOBEYABLE)
@pytest.mark.parametrize("further", [{}, {"required": ["user", "value", "more"]}])
def test_a_member_that_cannot_be_made_up_leaves_the_others_intact(name: str, further: dict[str, Any]) -> None:
    schema = {**object_of(user={**TEXT, "pattern": "^[a-z]{3}$"}, value=UNOBEYABLE[name]), **further}
    for value in arguments_of(schema):
        assert value.keys() == set(schema["required"])
        assert re.fullmatch("[a-z]{3}", value["user"])


@pytest.mark.parametrize("name", ["a broken pattern", "a type in other words", "an empty enumeration", "false"])
def test_an_alternative_that_works_is_taken(name: str) -> None:
    working = object_of(kind={"const": "a"}, number={"type": "integer"})
    for options in ([UNOBEYABLE[name], working], [working, UNOBEYABLE[name]]):
        for value in arguments_of(object_of(value={"anyOf": options})):
            assert value["value"]["kind"] == "a"


def test_alternatives_within_alternatives_are_weighed_with_all_their_faults() -> None:
    inner = {"anyOf": [UNOBEYABLE["a broken pattern"], UNOBEYABLE["a member beyond a closed object"]]}
    working = object_of(kind={"const": "a"})
    for value in arguments_of(object_of(value={"anyOf": [object_of(kind=inner), working]})):
        assert value["value"] == {"kind": "a"}


def test_conditions_hold_beside_a_member_that_cannot_be_made_up() -> None:
    schema = {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT, "bad": UNOBEYABLE["a broken pattern"]},
        "required": ["bad"],
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    for value in arguments_of(schema):
        assert "bad" in value
        assert ("a" in value) != ("b" in value)


@pytest.mark.parametrize(
    "schema",
    [
        object_of(user=TEXT, value={**TEXT, "pattern": r"^(?=.*\d)[a-z]+$"}),
        object_of(user=TEXT, value={**TEXT, "pattern": r"^(?![a-z])[a-z]{2}$"}),
        object_of(["user", "value", "beyond"], user=TEXT, value={**TEXT, "pattern": "^[a-z]+$"}),
    ],
)
def test_content_follows_the_grammar_of_xgrammar_where_no_value_is_found(schema: Any) -> None:
    """xgrammar ignores look-around, and names that a closed object requires without describing them."""
    contents = list(contents_of(schema))
    assert len(contents) == len(SEEDS_AND_VERBOSITIES)
    assert all(each.keys() == {"user", "value"} and re.fullmatch("[a-z]+", each["value"]) for each in contents)


def test_arguments_of_a_strict_function_have_a_format_that_is_not_known() -> None:
    schema = object_of(user=TEXT, value={**TEXT, "format": "password", "minLength": 4})
    assert all(len(each["value"]) >= 4 for each in arguments_of(schema, strict=True))


def test_a_structural_tag_has_what_can_be_made_up_of_its_schema() -> None:
    form = {"type": "json_schema", "json_schema": object_of(user=TEXT, value=UNOBEYABLE["a broken pattern"])}
    written = tag_text({"type": "structural_tag", "format": form}, Random(1), 1)
    assert json.loads(written).keys() == {"user", "value"}


def test_an_object_described_by_a_prompt_may_have_a_format_that_is_not_known() -> None:
    described = object_of(user=TEXT, value={**TEXT, "format": "nope"})
    form = JsonForm({"type": "object"}, backend="xgrammar", described_schema=described)
    assert json.loads(constrained_text(form, Random(1), 1)).keys() == {"user", "value"}


def test_text_for_xgrammar_ends_where_an_object_requires_itself_without_end() -> None:
    chain = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert lenient_text(chain, Random(1), 1).endswith('{"next": ')
