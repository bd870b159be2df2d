"""JSON values that a field takes, and the problems of those it does not take."""

import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.protocol.completions.fields import CHAT_FIELDS, COMPLETION_FIELDS
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import (
    FieldType,
    Flag,
    Integer,
    Number,
    OneOf,
    Text,
    as_flag,
    as_integer,
    as_number,
)

floats = st.floats(-9e18, 9e18) | st.sampled_from([math.inf, -math.inf, math.nan])
"""Whole floats beyond 64 bits are integers to a JSON schema, and none to pydantic."""
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def test_a_number_beyond_all_bounds_is_infinite() -> None:
    assert as_number(10**400) == math.inf
    assert as_number(-(10**400)) == -math.inf


@pytest.mark.parametrize("value", [3, "3", " 3 ", "3.0", "+3", 3.0, "0_3", True])
def test_an_integer_may_be_spelt_in_many_ways(value: Any) -> None:
    assert Integer().problems(value, "body.n") == []
    assert as_integer(value) in (1, 3)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (Integer(), 1.5, "int_from_float"),
        (Integer(), math.inf, "finite_number"),
        (Integer(), "1.5", "int_parsing"),
        (Integer(), "9" * 5000, "int_parsing_size"),
        (Integer(), "\ud800", "string_unicode"),
        (Number(), "\ud800", "string_unicode"),
        (Flag(), "\ud800", "string_unicode"),
        (OneOf(("a", "b")), "\ud800", "string_unicode"),
        (Text(is_bounded=True), "\ud800", "string_unicode"),
        (Record({"a": Text()}), {"\ud800": 1}, "string_unicode"),
        (Integer(), [], "int_type"),
        (Integer(at_least=0), -1, "greater_than_equal"),
        (Integer(at_most=5), "6", "less_than_equal"),
        (Number(), "x", "float_parsing"),
        (Number(), {}, "float_type"),
        (Flag(), 2, "bool_parsing"),
        (Flag(), "maybe", "bool_parsing"),
        (Flag(), 1.5, "bool_type"),
        (Flag(), 2**70, "bool_type"),
        (Text(), 5, "string_type"),
        (Text("bytes"), 5, "bytes_type"),
        (OneOf(("a", "b")), "c", "literal_error"),
        (ListOf(Text()), "a", "list_type"),
        (ListOf(Text(), at_most=1), ["a", "b"], "too_long"),
        (MapOf(Text()), [], "dict_type"),
        (Record({"a": Text()}), [], "model_attributes_type"),
        (Record({"a": Text()}, required=("a",)), {}, "missing"),
    ],
)
def test_a_value_of_the_wrong_type_is_called_by_name(kind: FieldType, value: Any, problem: str) -> None:
    assert [each.kind for each in kind.problems(value, "body.x")] == [problem]


def test_a_list_names_each_wrong_item_by_its_place() -> None:
    assert [each.location for each in ListOf(Integer()).problems([1, "x", 2, []], "body.ids")] == [
        "body.ids.1",
        "body.ids.3",
    ]


def test_a_value_that_fits_no_type_is_reported_for_each() -> None:
    kind = AnyOf((Text(), ListOf(Text())))
    assert [each.kind for each in kind.problems(5, "body.stop")] == ["string_type", "list_type"]
    assert kind.problems("a", "body.stop") == []
    assert Nullable(kind).problems(None, "body.stop") == []


@given(values)
def test_accepted_values_can_be_read(value: Any) -> None:
    for kind, read in ((Integer(), as_integer), (Number(), as_number), (Flag(), as_flag)):
        if not kind.problems(value, "x"):
            assert isinstance(read(value), int | float)


@given(values)
def test_values_that_fit_the_json_schema_of_a_field_are_accepted(value: Any) -> None:
    for kind in (*CHAT_FIELDS.values(), *COMPLETION_FIELDS.values()):
        if kind is not CHAT_FIELDS["messages"] and jsonschema.Draft202012Validator(kind.schema()).is_valid(value):
            assert kind.problems(value, "x") == []
