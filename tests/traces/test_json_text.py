"""JSON text: the shape is fixed, the numbers are the shortest that read back the same."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import dump_json, number_text

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.5, "-0.5"),
        (0.0, "0"),
        (1e-6, "0.000001"),
        (6.8e-7, "6.8e-7"),
        (1.5e-12, "1.5e-12"),
        (1e16, "10000000000000000"),
        (1.5e20, "150000000000000000000"),
        (1e21, "1e+21"),
        (12330.531914893618, "12330.531914893618"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


@given(_values)
def test_json_reads_back(value: Any) -> None:
    assert json.loads(dump_json(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_digit_of_a_number_is_lost(value: float) -> None:
    assert float(number_text(value)) == value


def test_the_layout_is_two_spaces_and_empty_brackets() -> None:
    assert dump_json({"b": [1, {"a": True}], "n": None, "e": [], "o": {}}) == (
        '{\n  "b": [\n    1,\n    {\n      "a": true\n    }\n  ],\n  "n": null,\n  "e": [],\n  "o": {}\n}'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_text_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="there is no decimal for"):
        dump_json([value])


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="JSON cannot hold a set"):
        dump_json({1})
