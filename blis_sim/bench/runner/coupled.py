"""Settings that vary together: counts with a given sum, and lists of values side by side."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from math import comb
from typing import Any, TypeAlias

from blis_sim.options import OptionError
from blis_sim.options.text import load_json

Rows: TypeAlias = list[tuple[Any, ...]]
"""The values of some settings, together."""

MOST_ROWS = 100_000


def is_coupled(name: str) -> bool:
    """Return whether a name is that of several settings: `a+b` for counts with a sum, `a,b` for lists side by side."""
    return "+" in name or "," in name


def names_of(name: str) -> list[str]:
    """Return the names of the single settings. Raises OptionError for an empty one, or one that is there twice."""
    names = [each.strip() for each in name.split("+" if "+" in name else ",")]
    if "" in names or len(set(names)) < len(names):
        raise OptionError(f"--vary must name settings as a+b=SUM or a,b=1:2,3:4, each once, got {name!r}")
    return names


def rows_of(name: str, values: Any, read: Callable[[int, Any], Any]) -> Rows:
    """Return the values of coupled settings; `values` is text after the equals sign, or a list of a file.

    `read` returns the value of the setting at a place. Raises OptionError.
    """
    names = names_of(name)
    if "+" in name:
        found = [row for total in _totals(name, values) for row in _splits(name, total, len(names))]
    else:
        found = [tuple(row) for row in _lists(name, values, len(names))]
    rows = [tuple(read(place, value) for place, value in enumerate(row)) for row in found]
    if len(set(rows)) < len(rows):
        raise OptionError(f"--vary {name} names values twice")
    return rows


def _totals(name: str, values: Any) -> Iterator[int]:
    for each in values.split(",") if isinstance(values, str) else values:
        text = str(each).strip()
        if not text.isascii() or not text.isdigit():
            raise OptionError(f"--vary {name} must be the sum of counts from 1 on, such as {name}=8, got {each!r}")
        yield int(text)


def _splits(name: str, total: int, num_parts: int) -> Rows:
    """Return all ways in which a total is the sum of so many counts from 1 on, the first part ascending."""
    if total < num_parts:
        raise OptionError(f"--vary {name} must be at least {num_parts}, one of each, got {total}")
    if comb(total - 1, num_parts - 1) > MOST_ROWS:
        raise OptionError(f"--vary {name} must give at most {MOST_ROWS} points, {total} gives more")
    cuts = combinations(range(1, total), num_parts - 1)
    return [tuple(after - before for before, after in pairwise((0, *each, total))) for each in cuts]


def _lists(name: str, values: Any, num_names: int) -> Iterator[Sequence[Any]]:
    """Yield the values side by side, of text such as `64:2048,128:8192` or of a list of lists."""
    given = values
    if isinstance(values, str):
        try:
            given = load_json(values) if values.startswith("[") else [each.split(":") for each in values.split(",")]
        except ValueError as error:
            raise OptionError(f"--vary {name} must have values such as 1:2,3:4, or JSON, got {values!r}") from error
    for row in given:
        if not isinstance(row, list) or len(row) != num_names:
            raise OptionError(f"--vary {name} must have {num_names} values side by side, such as 1:2, got {row!r}")
        yield [each.strip() if isinstance(each, str) else each for each in row]
