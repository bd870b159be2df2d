"""Values made up from JSON schemas are accepted by them."""

import json
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from mockserve.generation.structured_outputs.json_instances import instance_text
from mockserve.generation.structured_outputs.json_schema import SchemaError
from mockserve.options.content import ArgumentRanges
from tests.examples import examples

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": r"^\d{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags"],
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "more": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "left", "right"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: tuple[Any, ...] = (
    True,
    {},
    PERSON,
    TREE,
    {"type": "object"},
    {"type": ["string", "null", "integer"]},
    {"const": {"a": [1, None]}},
    {"enum": [1, "two", None, [3]]},
    {"type": "string", "enum": [1, "two", None]},
    {"enum": ["a", "bb", "ccc"], "minLength": 2},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}], "type": "object"},
    {"allOf": [{"type": "integer", "minimum": 3}, {"type": "number", "maximum": 4}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {"type": "null"}, "b": True}},
    {"not": {"type": "string"}, "type": ["string", "integer"]},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "properties": {"a": {"enum": [1, 2]}}},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -2.5, "maximum": -2.25},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": 50},
    {"type": "number", "multipleOf": 0.5, "maximum": -3},
    {"type": "integer", "multipleOf": 0.5, "minimum": 100},
    {"type": "integer", "multipleOf": 1.5, "maximum": 90},
    {"type": "integer", "maximum": -1000},
    {"type": "string", "minLength": 30, "maxLength": 31},
    {"type": "string", "maxLength": 2},
    {"type": "string", "pattern": "^(red|green)-[0-9]{2,}$", "maxLength": 8},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "contains": {"const": 5}, "items": {"type": "integer"}, "minContains": 2, "maxItems": 4},
    {"type": "object", "patternProperties": {"^x_[a-z]+$": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{3}$"}, "minProperties": 2, "maxProperties": 3},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "required": ["z"], "properties": {"y": {"type": "null"}}},
    {"definitions": {"a/b": {"type": "null"}}, "properties": {"x": {"$ref": "#/definitions/a~1b"}}, "required": ["x"]},
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_made_instances_are_valid(schema: Any, verbosity: int) -> None:
    validator = Draft202012Validator(schema)
    for seed in range(40):
        text = instance_text(schema, Random(seed), verbosity)
        validator.validate(json.loads(text))


def test_items_one_by_one_may_be_written_as_in_older_drafts() -> None:
    schema = {"type": "array", "items": [{"type": "string"}, {"type": "null"}], "additionalItems": False}
    for seed in range(20):
        Draft7Validator(schema).validate(json.loads(instance_text(schema, Random(seed), 2)))


def test_equal_seeds_make_equal_values() -> None:
    assert instance_text(PERSON, Random(3), 2) == instance_text(PERSON, Random(3), 2)
    assert len({instance_text(PERSON, Random(seed), 2) for seed in range(20)}) > 15


def test_properties_come_in_the_order_of_the_schema() -> None:
    assert list(json.loads(instance_text(PERSON, Random(1), 2)))[:2] == ["name", "age"]


def test_the_least_value_has_only_what_is_required() -> None:
    assert set(json.loads(instance_text(PERSON, Random(1), 0))) == {"name", "age", "tags"}
    assert json.loads(instance_text(TREE, Random(1), 0)).keys() == {"value", "left", "right"}
    assert instance_text({"type": "object"}, Random(1), 0) == "{}"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("date-time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
        ("date", r"\d{4}-\d\d-\d\d"),
        ("time", r"\d\d:\d\d:\d\dZ"),
        ("email", r"\w+@\w+\.com"),
        ("ipv4", r"(\d{1,3}\.){3}\d{1,3}"),
        ("ipv6", r"([0-9a-f]{4}:){7}[0-9a-f]{4}"),
        ("uri", r"https://\w+\.org/\w+"),
        ("uuid", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    ],
)
def test_strings_have_the_requested_format(name: str, pattern: str) -> None:
    for seed in range(20):
        assert re.fullmatch(pattern, json.loads(instance_text({"type": "string", "format": name}, Random(seed), 1)))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        # The words are those of captured replies.
        ({"type": "foo"}, "Invalid type: foo"),
        ({"type": ["string", "foo"]}, "Invalid type: foo"),
        ({"type": "object", "properties": []}, "properties must be an object"),
        ({"$ref": "#/$defs/x"}, "Pointer '/$defs/x' does not exist"),
        (
            {"type": "integer", "minimum": 5, "maximum": 2},
            "Unsatisfiable schema: minimum (5) is greater than maximum (2)",
        ),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength (5) is greater than maxLength (2)"),
        ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems (3) is greater than maxItems (1)"),
        ({"enum": []}, "Unsatisfiable schema: anyOf is empty"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable schema: incompatible types"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "Unsatisfiable schema"),
        ({"$ref": "#"}, "Unsatisfiable schema: a reference that leads back to itself"),
        ({"$ref": "https://example.org/schema"}, "Failed to resolve reference"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "Unsatisfiable schema"),
    ],
)
@pytest.mark.parametrize("verbosity", [0, 2])
def test_an_unsatisfiable_schema_is_refused_with_vllms_message(schema: Any, reason: str, verbosity: int) -> None:
    with pytest.raises(SchemaError, match=re.escape(reason)):
        instance_text(schema, Random(1), verbosity)


def test_open_values_are_within_the_ranges_of_the_server() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "list": {"type": "array", "items": {"type": "null"}},
            "maybe": {"type": "object", "properties": {"field": {"type": "null"}}},
            "bounded": {"type": "integer", "minimum": 1, "maximum": 2},
        },
        "required": ["n", "x", "list", "bounded"],
    }
    argument_ranges = ArgumentRanges(
        integers=(7, 9), numbers=(0.5, 0.6), array_lengths=(3, 4), optional_probability=1.0
    )
    for seed in range(40):
        found = json.loads(instance_text(schema, Random(seed), 2, argument_ranges))
        assert (found["n"] in (7, 8, 9), 0.5 <= found["x"] <= 0.6, len(found["list"]) in (3, 4)) == (True, True, True)
        assert found["bounded"] in (1, 2)
        assert "maybe" in found
    without = replace(argument_ranges, optional_probability=0.0)
    assert all("maybe" not in json.loads(instance_text(schema, Random(seed), 2, without)) for seed in range(40))
    fields = replace(argument_ranges, optional_field_probability=0.0)
    assert all(json.loads(instance_text(schema, Random(seed), 2, fields))["maybe"] == {} for seed in range(40))


@pytest.mark.parametrize("pattern", ["^.{8,12}$", r"^(?=.*\d).{8,12}$"])
def test_a_text_of_a_pattern_needs_no_escapes_in_json(pattern: str) -> None:
    for seed in range(40):
        assert "\\" not in instance_text({"type": "string", "pattern": pattern}, Random(seed), 2)


def test_a_text_of_a_pattern_has_escapes_where_there_is_no_other() -> None:
    assert instance_text({"type": "string", "pattern": '^"a"$'}, Random(1), 2) == json.dumps('"a"')


def test_an_invalid_pattern_is_refused() -> None:
    with pytest.raises(SchemaError, match="unclosed group"):
        instance_text({"type": "string", "pattern": "(("}, Random(1), 1)


scalars = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, st.integers(), st.integers(0, 9)
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.text(max_size=3) | st.integers(), min_size=1, max_size=3)),
)
names = st.sampled_from("abcd")


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, required, free: {
            "type": "object",
            "properties": properties,
            "required": [each for each in properties if each in required],
            "additionalProperties": free,
        },
        st.dictionaries(names, inner, max_size=4),
        st.sets(names),
        st.booleans(),
    )


schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda item, least: {"type": "array", "items": item, "minItems": least}, inner, st.integers(0, 3)),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(schemas, st.integers(0, 1000), st.integers(0, 2))
@settings(max_examples=examples(150))
def test_any_schema_gets_a_value_it_accepts(schema: Any, seed: int, verbosity: int) -> None:
    Draft202012Validator(schema).validate(json.loads(instance_text(schema, Random(seed), verbosity)))
