"""Rows as columns, and columns as short lists of numbers: how reference figures are kept in few bytes.

A packed value is plain JSON. A list of rows becomes `{"shapes": ..., "shape": ..., "columns": ...}`: the keys of rows,
by row if they differ, and for each key the values of the rows that have it. Packing is exact: unpacking gives equal
values of equal types, floats to the last bit.
"""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

Row = dict[str, Any]

FEWEST_ROWS = 4
LARGEST = 1e18
"""Beyond it, numerators would be longer than the numbers that they stand for."""
COUNTS = ("num_decode_tokens", "output_tokens")
"""Columns that count the tokens of a reply; a mean gap between tokens is a whole number divided by one less."""


def pack(value: Any) -> Any:
    """Return `value` with its lists of rows as columns."""
    if isinstance(value, dict):
        return {"map": {key: pack(each) for key, each in value.items()}}
    if isinstance(value, list):
        is_table = len(value) >= FEWEST_ROWS and all(isinstance(each, dict) for each in value)
        return _table(value) if is_table else {"list": [pack(each) for each in value]}
    return value


def unpack(packed: Any) -> Any:
    """Return what `packed` was made of."""
    if not isinstance(packed, dict):
        return packed
    if "map" in packed:
        return {key: unpack(each) for key, each in packed["map"].items()}
    if "list" in packed:
        return [unpack(each) for each in packed["list"]]
    return _rows(packed)


def pack_column(values: list[Any], counts: Sequence[int] | None = None) -> Any:
    """Return a short form of a column: one value, words by number, steps, numerators, or the values themselves."""
    if values and all(_is_same(each, values[0]) for each in values):
        return {"same": pack(values[0]), "n": len(values)}
    if values and all(isinstance(each, dict) for each in values):
        return {"rows": _table(values)}
    if values and all(isinstance(each, str) for each in values):
        return _pack_words(values)
    if all(type(each) in (int, float) and abs(each) < LARGEST for each in values):
        for name, whole, back in _fractions(counts):
            numerators = [whole(each, place) for place, each in enumerate(values)]
            if all(_is_same(back(n, place), values[place]) for place, n in enumerate(numerators)):
                return {name: _pack_steps(numerators)}
    return {"values": [pack(each) for each in values]}


def unpack_column(column: dict[str, Any], counts: Sequence[int] | None = None) -> list[Any]:
    """Return the values of a packed column."""
    if "same" in column:
        return [unpack(column["same"])] * int(column["n"])
    if "rows" in column:
        return _rows(column["rows"])
    if "words" in column:
        return [column["words"][place] for place in _unpack_steps(column["places"])]
    if "prefix" in column:
        return [f"{column['prefix']}{number}" for number in _unpack_steps(column["numbers"])]
    for name, _, back in _fractions(counts):
        if name in column:
            return [back(n, place) for place, n in enumerate(_unpack_steps(column[name]))]
    return [unpack(each) for each in column["values"]]


def _pack_words(values: list[str]) -> dict[str, Any]:
    prefix = re.sub(r"\d+$", "", values[0])
    numbers = [value.removeprefix(prefix) for value in values]
    if all(
        re.fullmatch("0|[1-9][0-9]*", number) and prefix + number == value
        for value, number in zip(values, numbers, strict=True)
    ):
        return {"prefix": prefix, "numbers": _pack_steps([int(number) for number in numbers])}
    words = sorted(set(values))
    return {"words": words, "places": _pack_steps([words.index(value) for value in values])}


def _pack_steps(numbers: list[int]) -> list[int] | dict[str, list[int]]:
    """Return numbers that never fall by their steps, others as they are, so that equal columns stay equal."""
    steps = [after - before for before, after in zip([0, *numbers], numbers, strict=False)]
    return {"steps": steps} if all(step >= 0 for step in steps[1:]) else numbers


def _unpack_steps(packed: list[int] | dict[str, list[int]]) -> list[int]:
    return list(accumulate(packed["steps"])) if isinstance(packed, dict) else packed


_Whole = Callable[[float, int], int]
_Back = Callable[[int, int], Any]


def _fractions(counts: Sequence[int] | None) -> list[tuple[str, _Whole, _Back]]:
    """Return the names of forms of numbers, each with the whole number that stands for one and the way back."""
    found: list[tuple[str, _Whole, _Back]] = [
        ("whole", lambda value, _: round(value), lambda n, _: n),
        ("thousandths", lambda value, _: round(value * 1000), lambda n, _: n / 1000),
        ("millionths", lambda value, _: round(value * 1e6), lambda n, _: n / 1e6),
        ("thousandths_or_whole", lambda value, _: round(value * 1000), lambda n, _: _number(n, 1000)),
        ("millionths_or_whole", lambda value, _: round(value * 1e6), lambda n, _: _number(n, 1_000_000)),
    ]
    if counts is not None:
        gaps = [max(count - 1, 1) for count in counts]
        found += [
            ("mean_gaps", lambda value, place: round(value * gaps[place]), lambda n, place: _number(n, gaps[place])),
            (
                "mean_gap_thousandths",
                lambda value, place: round(value * gaps[place] * 1000),
                lambda n, place: _number(n / gaps[place], 1000),
            ),
        ]
    return found


def _number(numerator: float, denominator: int) -> int | float:
    """Return a quotient as JSON files have it: without a fraction where it has none."""
    value = numerator / denominator
    return int(value) if value.is_integer() else value


def _is_same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # which differs for 1, 1.0 and True, and for 0.0 and -0.0


def _table(rows: list[Row]) -> dict[str, Any]:
    shapes: list[list[str]] = []
    shape = []
    for row in rows:
        keys = list(row)
        if keys not in shapes:
            shapes.append(keys)
        shape.append(shapes.index(keys))
    names = list(dict.fromkeys(key for keys in shapes for key in keys))
    counts = _counts(rows)
    columns = {
        name: pack_column(
            [row[name] for row in rows if name in row],
            counts and [count for row, count in zip(rows, counts, strict=True) if name in row],
        )
        for name in names
    }
    return {"shapes": shapes, "shape": pack_column(shape), "columns": columns}


def _counts(rows: list[Row]) -> list[int] | None:
    for name in COUNTS:
        if all(type(row.get(name)) is int for row in rows):
            return [row[name] for row in rows]
    return None


def _rows(table: dict[str, Any]) -> list[Row]:
    shape = unpack_column(table["shape"])
    keys = [table["shapes"][each] for each in shape]
    counts = None
    for name in COUNTS:
        if name in table["columns"] and all(name in each for each in keys):
            found = unpack_column(table["columns"][name])
            if all(type(each) is int for each in found):
                counts = found
                break
    places = {name: [place for place, each in enumerate(keys) if name in each] for name in table["columns"]}
    values = {
        name: iter(unpack_column(column, counts and [counts[place] for place in places[name]]))
        for name, column in table["columns"].items()
    }
    return [{name: next(values[name]) for name in each} for each in keys]
