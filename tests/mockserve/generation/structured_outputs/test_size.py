"""Jobs marked as small take a bounded number of calls; larger ones are not marked."""

import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mockserve.generation.structured_outputs.checks import is_small_schema
from mockserve.generation.structured_outputs.json_instances import needs_validation
from mockserve.generation.structured_outputs.kinds import (
    DeferredForm,
    constrained_text,
    read_constraint,
    requested_constraint,
)
from mockserve.options.content import ArgumentRanges
from mockserve.protocol.errors import ApiError
from tests.examples import examples
from tests.wire.hostile_constraints import HOSTILE, doubling

MOST_CALLS = 100_000
"""Most calls of functions, in C and in Python: some 10 ms."""

PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "zip": {"type": "string", "minLength": 5},
        "nick": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 5},
        "home": {"$ref": "#/$defs/Address"},
        "work": {"$ref": "#/$defs/Address"},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
    "$defs": {"Address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}


def num_calls(function: Callable[[], object]) -> int:
    """How many functions a function calls, directly or not."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        with suppress(ApiError):
            function()
    finally:
        sys.setprofile(None)
    return count


def test_ordinary_constraints_are_small() -> None:
    assert is_small_schema(PERSON)
    assert is_small_schema({"type": "object"})
    for demand in (
        {"choice": ["yes", "no"]},
        {"json": PERSON},
        {"json_object": True},
    ):
        assert not isinstance(requested_constraint({"structured_outputs": demand}), DeferredForm)


@pytest.mark.parametrize(
    "schema",
    [
        doubling("anyOf", 12),
        doubling("allOf", 2),
        {"type": "array", "minItems": 30, "items": {"type": "array", "minItems": 30}},
        {"type": "string", "minLength": 5000},
        {"type": "string", "pattern": "a"},
        {"enum": ["x" * 100] * 1000},
        {"$ref": "#"},
        {"type": "array", "uniqueItems": True},
        {"properties": {"contains": {"type": "string"}}},
        {"type": "integer", "minimum": 10**400},
        {"const": [[[[0] * 10] * 10] * 10]},
        {"unknown": 1},
        {"type": "strin"},
        {"properties": 3},
        {"minLength": 3, "maxLength": 2},
        {"anyOf": []},
    ],
)
def test_constraints_that_may_be_large_are_not_small(schema: Any) -> None:
    assert not is_small_schema(schema)


def test_counts_the_arrays_that_a_server_makes_longer() -> None:
    nested = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
    assert is_small_schema(nested)
    assert not is_small_schema(nested, ArgumentRanges(array_lengths=(1, 100)))


def test_hostile_constraints_are_deferred() -> None:
    bodies = [each.body() for each in HOSTILE]
    demands = [each for each in bodies if "structured_outputs" in each or "response_format" in each]
    assert len(demands) > 20
    assert [each for each in demands if not isinstance(requested_constraint(each), DeferredForm)] == []


names = st.sampled_from("abc")
small_numbers = st.integers(0, 30)
schemas = st.recursive(
    st.sampled_from([True, {"type": "string"}, {"type": "integer"}, {"$ref": "#/$defs/a"}, {"enum": [1, 2]}]),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "minItems": small_numbers})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=4)})
        | st.fixed_dictionaries(
            {"properties": st.dictionaries(names, inner), "required": st.lists(names), "$defs": st.just({"a": True})},
            optional={"additionalProperties": inner, "minProperties": small_numbers},
        )
    ),
    max_leaves=20,
)


def test_required_members_multiply_where_objects_are_nested() -> None:
    inner = {"type": "object", "minProperties": 25, "additionalProperties": {"type": "integer"}}
    assert is_small_schema(inner)
    assert not is_small_schema({"type": "object", "minProperties": 25, "additionalProperties": inner})


@pytest.mark.slow
@given(schemas, st.integers(0, 2))
@settings(max_examples=examples(300), deadline=None)
def test_a_small_job_takes_few_calls(schema: Any, verbosity: int) -> None:
    if not is_small_schema(schema):
        return

    def made() -> None:
        form = read_constraint({"structured_outputs": {"json": schema}})
        assert form is not None
        constrained_text(form, Random(1), verbosity)

    assert num_calls(made) < MOST_CALLS


@pytest.mark.parametrize("num_levels", [500, 2000, 50_000])
@pytest.mark.parametrize("name", ["minimum", "multipleOf", "x"])
@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["lists", "objects"])
def test_a_schema_with_a_deep_value_is_judged_whatever_its_depth(
    name: str, num_levels: int, wrap: Callable[[Any], Any]
) -> None:
    value: Any = 1
    for _ in range(num_levels):
        value = wrap(value)
    assert not is_small_schema({"type": "integer", name: value})
    assert needs_validation({"type": "integer", name: [value, {"uniqueItems": True}]})
