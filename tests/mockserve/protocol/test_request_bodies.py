"""Bodies as pydantic models: errors in vLLM's form, and long lists, which are read piece by piece."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from mockserve.protocol.bodies import (
    PIECE_ITEMS,
    Entries,
    Items,
    OpenObject,
    RequestObject,
    errors_of,
    location,
    read_as,
    set_fields,
)
from mockserve.protocol.errors import ApiError


class Plain(RequestObject):
    """Values, and objects of values."""

    numbers: list[int] = Field(default_factory=list)
    rows: list[list[int]] = Field(default_factory=list)
    named: dict[str, int] = Field(default_factory=dict)


class InPieces(RequestObject):
    """Fields as of `Plain`, read piece by piece."""

    numbers: Items[int] = Field(default_factory=list)
    rows: Items[Items[int]] = Field(default_factory=list)
    named: Entries[int] = Field(default_factory=dict)


class Open(OpenObject):
    """An object that keeps what it does not know."""

    number: int = 1


def outcome(kind: type[Any], body: dict[str, Any]) -> Any:
    try:
        return read_as(kind, body).model_dump()
    except ApiError as error:
        return error.message, error.param


_long = st.lists(st.sampled_from([1, "2", 3.0, True, "x", None, 1.5, [], {}]), max_size=4).map(
    lambda few: [*few, *range(PIECE_ITEMS - 1), *few]
)


@given(_long, _long)
def test_a_long_list_has_the_values_and_errors_of_one_read_at_once(numbers: list[Any], row: list[Any]) -> None:
    named = {f"n{place}": value for place, value in enumerate(numbers)}
    body = {"numbers": numbers, "rows": [row, [1], row], "named": named}
    assert outcome(InPieces, body) == outcome(Plain, body)


@pytest.mark.parametrize("number", [1, 9, 10, 11, 12, PIECE_ITEMS, PIECE_ITEMS + 1, 5 * PIECE_ITEMS])
def test_all_errors_are_counted_and_ten_are_listed(number: int) -> None:
    message, param = outcome(InPieces, {"rows": [["x"] * number, [1]], "numbers": ["y"]})
    assert message.startswith(f"{number + 1} validation errors:")
    assert message.count("\n  {'type': 'int_parsing'") == min(10, number + 1)
    assert ("more errors" in message) == (number > 9)
    assert param == "body.numbers.0"


def test_an_error_in_a_later_piece_is_at_its_place_in_the_list() -> None:
    _, param = outcome(InPieces, {"numbers": [*range(3 * PIECE_ITEMS), "x"]})
    assert param == f"body.numbers.{3 * PIECE_ITEMS}"


def test_errors_of_a_long_list_do_not_take_memory_for_each() -> None:
    with pytest.raises(ValidationError) as found:
        InPieces.model_validate({"numbers": ["x"] * 100 * PIECE_ITEMS})
    assert found.value.error_count() < PIECE_ITEMS


def test_types_of_a_union_are_no_part_of_a_place() -> None:
    assert location(("stop", "list[str]", 0)) == "body.stop.0"
    assert location(("prompt", "str")) == "body.prompt"
    assert location(("tools", 0, "function-after[f(), Tool]", "name")) == "body.tools.0.name"


def test_a_refused_body_is_not_held_by_its_error() -> None:
    with pytest.raises(ApiError) as found:
        read_as(Plain, {"numbers": "x"})
    assert found.value.__context__ is None


def test_the_fields_of_a_body_are_those_that_it_has_and_unknown_ones_if_they_are_kept() -> None:
    assert set_fields(read_as(Open, {"number": "3", "other": "4"})) == {"number": 3, "other": "4"}
    assert set_fields(read_as(Plain, {"other": 1})) == {}


def test_the_place_of_a_value_in_another_begins_the_places_of_its_errors() -> None:
    errors = errors_of(list[int], [1, "x"], "calls", 2)
    assert errors is not None
    assert [each["loc"] for each in errors.errors()] == [("calls", 2, 1)]
