"""Whatever a body demands, there is an answer of that form or a refusal, and soon."""

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.generation.structured_outputs.kinds import constrained_text, read_constraint
from mockserve.generation.tool_calls import call_script, read_tool_use
from mockserve.protocol.errors import ApiError
from tests.examples import examples

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text("ab(\\[.", max_size=4)
keywords = st.sampled_from(
    [
        *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "not"),
        *("if", "then", "$ref", "$defs", "pattern", "format", "minLength", "maxLength", "minimum", "maximum"),
        *("exclusiveMinimum", "multipleOf", "minItems", "maxItems", "uniqueItems", "contains", "minContains"),
        *("additionalProperties", "patternProperties", "propertyNames", "minProperties", "dependentRequired"),
    ]
)
names = st.sampled_from(["string", "object", "array", "integer", "#", "#/$defs/a", "a"])
odd_schemas = st.recursive(
    scalars | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords | names, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(odd_schemas)
@settings(max_examples=examples(400))
def test_any_schema_is_met_or_refused(schema: Any) -> None:
    with suppress(ApiError):
        constraint = read_constraint({"structured_outputs": {"json": schema}})
        for verbosity in (0, 1, 2) if constraint is not None else ():
            assert constraint is not None
            constrained_text(constraint, Random(1), verbosity)


@given(odd_schemas, st.sampled_from(["auto", "required"]))
def test_any_function_can_be_called_or_is_refused(schema: Any, choice: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, schema]
    use = read_tool_use({"tools": tools, "tool_choice": choice}, 1.0, 0.0)
    assert use is not None
    try:
        call_script(use, use.functions, Random(1), 1)
    except ApiError:
        assert choice == "required"


def deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "demand",
    [
        {"regex": "(a{1000}){1000}"},
        {"regex": "((a{0,1000}){0,1000}){0,1000}"},
        {"regex": "(((){1000}){1000}){1000}"},
        {"regex": "(" * 3000 + ")" * 3000},
        {"grammar": 'start: ("a"~1000)~1000'},
        {"grammar": "root ::= a a\na ::= b b b b b b b b\nb ::= c c c c c c c c\nc ::= [a-z]{1000}"},
        {"json": {"type": "string", "minLength": 10**9}},
        {"json": {"type": "array", "minItems": 10**9}},
        {"json": {"type": "array", "minItems": 9000, "items": {"type": "array", "minItems": 9000}}},
        {"json": {"type": "object", "minProperties": 10**9}},
        {"json": {"type": "string", "pattern": "a{90000}b{90000}"}},
        {"json": deep(30)},
        {"json": deep(500)},
        {"json": deep(50_000)},
        {"choice": ["a" * 100_000]},
    ],
)
def test_a_large_constraint_is_met_or_refused_soon(demand: Any) -> None:
    with suppress(ApiError):
        constraint = read_constraint({"structured_outputs": demand})
        assert constraint is not None
        assert len(constrained_text(constraint, Random(1), 2)) < 1_000_000
