"""CSV files read by column name: a description of each column drives the conversion and words the errors."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.options.file_fields import Bounds, allowed_values, shortened
from traces.collector import gc_disabled
from traces.text_file import TraceError, can_be_read_again, read_text, reading_lines

INT64_MAX = 2**63 - 1
# Few enough rows at a time that their cells stay in the processor's cache.
_ROWS_AT_ONCE = 2_000
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


class Column(NamedTuple):
    """Definition of one column. `kind` is int, float, bool or str; limits are included in what is allowed.

    `choices` closes the set of texts.

    A column that is not required may be absent, and its cells may be empty: both give `default`. Text that is
    `trimmed` loses the space around it; columns `on_request` are only written when requested.
    """

    name: str
    kind: type
    help: str = ""
    required: bool = False
    default: Any = None
    at_least: int | None = None
    at_most: int | None = None
    trimmed: bool = False
    on_request: bool = False
    choices: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """Return a description of the allowed values of a cell."""
        nothing = " or nothing" if "" in self.choices else ""
        return allowed_values(self.kind, Bounds(self.at_least, self.at_most, choices=self.choices)) + nothing

    def allows(self, values: Sequence[Any]) -> bool:
        """Whether numbers are within the limits, and fit in 64 bits."""
        if self.kind is bool:
            return True
        low = -INT64_MAX if self.at_least is None else self.at_least
        high = INT64_MAX if self.at_most is None else self.at_most
        finite = self.kind is int or all(map(math.isfinite, values))
        return finite and low <= min(values) and max(values) <= high


@dataclass(slots=True)
class Table:
    """The columns read from a file, as lists of equal length, with what errors about a row need."""

    path: Path
    columns: dict[str, list[Any]]
    text: str | None = None
    """The content, where it can be read only once or has been read already; else the file is read by lines."""
    unread: dict[str, int] = field(default_factory=dict)
    """Columns that were not asked for, each with the number of its cells that are not empty."""

    def lines(self) -> AbstractContextManager[Iterable[str]]:
        """Open the file to read it from its beginning, by lines. Raises TraceError."""
        return reading_lines(self.path) if self.text is None else nullcontext(io.StringIO(self.text, newline=""))

    def cell_error(self, row: int, name: str, expected: str, cell: str) -> TraceError:
        """The error for the cell of a row, counted from 0 without header and blank lines."""
        line = self._line_of(row + 1)
        return TraceError(f"{self.path} line {line} column {name}: expected {expected}, got {shortened(cell)!r}")

    def row_error(self, row: int, expected: str) -> TraceError:
        """The error for a whole row, counted from 0 without header and blank lines."""
        return TraceError(f"{self.path} line {self._line_of(row + 1)}: expected {expected}")

    def _line_of(self, row: int) -> int:
        """The line (from 1) on which a row starts. Rows count from 0 with the header, without blank lines."""
        seen, line = -1, 1
        with self.lines() as lines:
            reader = csv.reader(lines)
            for cells in reader:
                seen += not _is_blank(cells)
                if seen == row:
                    break
                line = reader.line_num + 1
        return line


def read_table(path: Path, columns: Sequence[Column], text: str | None = None) -> Table:
    """Read the named columns, in whatever order the file has them; of those it has besides the cells are counted.

    Case does not matter in header names. Blank lines are skipped; every row has as many cells as the header. `text`
    stands for the content of the file where that has been read already.
    Raises TraceError naming the first cell that cannot be used.
    """
    table = table_of(path, text)
    table.columns.update({column.name: [] for column in columns})
    with gc_disabled():
        for portion in portions(table, columns):
            for column, values in zip(columns, portion, strict=True):
                table.columns[column.name] += values
    return table


def table_of(path: Path, text: str | None = None) -> Table:
    """Return the table of a file of which nothing is read yet. Raises TraceError."""
    return Table(path, {}, read_text(path) if text is None and not can_be_read_again(path) else text)


def portions(table: Table, columns: Sequence[Column]) -> Iterator[list[Sequence[Any]]]:
    """Yield the values of the columns for some thousands of rows at a time. Raises TraceError as `read_table` does."""
    with _long_cells_allowed(), table.lines() as lines:
        reader = csv.reader(lines, strict=True)
        titles = _header(table, reader)
        names = [title.lower() for title in titles]
        places = _places(table.path, names, columns)
        known = {column.name for column in columns}
        unread = {place: title for place, title in enumerate(titles) if title.lower() not in known}
        num_rows = 0
        while found := _next_lines(table, reader):
            rows = [cells for cells in found if not _is_blank(cells)]
            if rows:
                yield _portion(table, num_rows, rows, columns, places, len(names))
                for place, title in unread.items():
                    table.unread[title] = table.unread.get(title, 0) + sum(bool(cells[place].strip()) for cells in rows)
            num_rows += len(rows)


@contextmanager
def _long_cells_allowed() -> Iterator[None]:
    # The whole body of a reply may stand in one cell, longer than the csv module's default limit.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _next_lines(table: Table, reader: Any, at_most: int = _ROWS_AT_ONCE) -> list[list[str]]:
    try:
        return list(islice(reader, at_most))
    except csv.Error as error:
        with table.lines() as lines:
            line = min(reader.line_num, sum(each.count("\n") for each in lines) + 1)
        raise TraceError(f"{table.path} line {line}: expected comma-separated cells, {error}") from error


def _is_blank(cells: list[str]) -> bool:
    return len(cells) < 2 and not "".join(cells).strip()


def _header(table: Table, reader: Any) -> list[str]:
    while lines := _next_lines(table, reader, at_most=1):
        if not _is_blank(lines[0]):
            return [name.strip() for name in lines[0]]
    raise TraceError(f"{table.path}: the file is empty, expected a first line naming the columns")


def _places(path: Path, names: list[str], columns: Sequence[Column]) -> dict[str, int]:
    known = {column.name for column in columns}
    if not known.intersection(names):
        required = ", ".join(column.name for column in columns if column.required)
        found = repr(shortened(",".join(names)))
        raise TraceError(f"{path} line 1: expected a header row with the columns {required}, got {found}")
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        if name in known and name in places:
            raise TraceError(f"{path} line 1: the column {name} appears twice")
        places[name] = place
    missing = [column.name for column in columns if column.required and column.name not in places]
    if missing:
        raise TraceError(f"{path} line 1: the column {missing[0]} is missing, found {', '.join(names)}")
    return places


def _portion(
    table: Table,
    first_row: int,
    rows: list[list[str]],
    columns: Sequence[Column],
    places: dict[str, int],
    num_names: int,
) -> list[Sequence[Any]]:
    lengths = list(map(len, rows))
    if lengths.count(num_names) != len(rows):
        odd = next(row for row, length in enumerate(lengths) if length != num_names)
        expected = f"{num_names} cells as in the header, got {lengths[odd]}"
        raise table.row_error(first_row + odd, expected)
    by_place = list(zip(*rows, strict=True))
    found: list[Sequence[Any]] = []
    for column in columns:
        place = places.get(column.name)
        if place is None:
            found.append([column.default] * len(rows))
        else:
            found.append(_values(table, first_row, column, by_place[place]))
    return found


def _values(table: Table, first_row: int, column: Column, cells: Sequence[str]) -> Sequence[Any]:
    """The cells of one column converted: all at once where every cell is plain, else one by one."""
    if cells.count(cells[0]) == len(cells) > 1:  # most columns of most traces
        return list(_values(table, first_row, column, cells[:1])) * len(cells)
    if column.kind is str:
        if column.choices:
            _check_choices(table, first_row, column, cells)
        return [cell.strip() for cell in cells] if column.trimmed else cells
    values = _converted(column, cells)
    if values is None:
        return [_value(table, row, column, cell) for row, cell in enumerate(cells, first_row)]
    return values


def _check_choices(table: Table, first_row: int, column: Column, cells: Sequence[str]) -> None:
    if not set(cells).issubset(column.choices):
        row, cell = next((row, cell) for row, cell in enumerate(cells, first_row) if cell not in column.choices)
        raise table.cell_error(row, column.name, column.expected, cell)


def _value(table: Table, row: int, column: Column, cell: str) -> Any:
    text = cell.strip()
    if not text and not column.required:
        return column.default
    values = _converted(column, (text,))
    if values is None:
        raise table.cell_error(row, column.name, column.expected, cell)
    return values[0]


def _converted(column: Column, cells: Sequence[str]) -> list[Any] | None:
    """All cells as values, or None when one of them is not plainly a value within the limits."""
    joined = "".join(cells)
    # int() and float() would also take 1_000 and the digits of other scripts.
    if not joined.isascii() or "_" in joined:
        return None
    try:
        values = list(map(_CONVERTERS[column.kind], cells))
    except (ValueError, KeyError):
        return None
    return values if column.allows(values) else None


_CONVERTERS: dict[type, Callable[[str], Any]] = {int: int, float: float, bool: _BOOLS.__getitem__}
