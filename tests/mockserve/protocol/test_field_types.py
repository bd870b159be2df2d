"""Integers and flags of query strings and events, and the problems of values that are neither."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from mockserve.protocol.forms import as_flag, flag_problem, integer_problem

_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(
        ["1_000", " 3 ", "3.0", "+3", "1.5", "9" * 5000, "\ud800", "yes", "OFF", 2**70, -(2**63), math.inf]
    ),
    st.lists(st.integers(), max_size=1),
)


def pydantic_error(kind: type[Any], value: Any) -> tuple[str, str] | None:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        (found,) = error.errors()
        return found["type"], found["msg"]
    return None


@given(_values)
def test_problems_of_integers_are_those_of_pydantic(value: Any) -> None:
    found = integer_problem(value, "query.n")
    assert (None if found is None else (found.kind, found.message)) == pydantic_error(int, value)


@given(_values)
def test_problems_of_flags_are_those_of_pydantic(value: Any) -> None:
    found = flag_problem(value, "query.n")
    assert (None if found is None else (found.kind, found.message)) == pydantic_error(bool, value)


@pytest.mark.parametrize(("value", "flag"), [("yes", True), ("OFF", False), (1, True), (0.0, False), (True, True)])
def test_flags_may_be_spelt_in_many_ways(value: Any, flag: bool) -> None:
    assert flag_problem(value, "query.n") is None
    assert as_flag(value) is flag
