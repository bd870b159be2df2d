"""Values are judged as the library judges them, but in linear time and without a look beyond the schema."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mockserve.generation.structured_outputs.validation import contains_match, new_validator
from tests.examples import examples

names = st.sampled_from("abcd")
patterns = st.sampled_from(["a", "^b", "c|d", "."])
schemas = st.recursive(
    st.booleans()
    | st.sampled_from([{"type": "string"}, {"type": "integer"}, {"pattern": "^b"}, {"$ref": "#/$defs/x"}]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(names, inner, max_size=2),
            "patternProperties": st.dictionaries(patterns, inner, max_size=2),
            "additionalProperties": inner,
            "unevaluatedProperties": inner,
            "dependentSchemas": st.dictionaries(names, inner, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "if": inner,
            "then": inner,
            "else": inner,
        },
    ),
    max_leaves=8,
)
values = st.dictionaries(names, st.integers() | names, max_size=4) | names | st.integers()
DEFINED = {"x": {"properties": {"d": True}, "patternProperties": {"a": True}}}


@pytest.mark.slow
@given(schemas.filter(lambda schema: isinstance(schema, dict)), values)
@settings(max_examples=examples(500), deadline=None)
def test_agrees_with_the_library(schema: dict[str, Any], value: Any) -> None:
    schema = {**schema, "$defs": DEFINED}
    assert new_validator(schema).is_valid(value) == Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x", "file:///etc/hostname", "other.json"])
def test_retrieves_nothing(keyword: str, address: str) -> None:
    with pytest.raises(Exception, match="Unresolvable"):
        new_validator({"$id": "http://127.0.0.1:9/", "not": {keyword: address}}).is_valid({})


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {"patternProperties": {"^(a|a)*$": False}},
        {"additionalProperties": False, "patternProperties": {"^(a|aa)+$": True}},
        {"unevaluatedProperties": False, "patternProperties": {"^(a*)*$": True}},
    ],
)
def test_matches_in_linear_time(schema: dict[str, Any]) -> None:
    name = "a" * 5000 + "!"
    began_s = time.process_time()
    new_validator(schema).is_valid(name)
    new_validator(schema).is_valid({name: 1})
    assert time.process_time() - began_s < 5, "backtracking takes longer than the universe is old"


def test_a_pattern_that_cannot_be_matched_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot match"):
        contains_match("(?=a)", "a")
