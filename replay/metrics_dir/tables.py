"""CSV and JSON files that are written row by row, so that a run of any length holds none of them in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import orjson

from traces.text_file import cannot_write, naming_write_errors, open_for_writing

Cell: TypeAlias = str | float | None
"""A value of a CSV table; None leaves the cell empty."""
_NUMBERS = frozenset((int, float))
"""Types of most cells, whose text is found without a call."""
_ROWS_AT_ONCE = 4096
"""Rows that are held before they are written: system calls are the largest cost of a row."""


class RowFile:
    """A text file of lines, written in large pieces. Raises TraceError when the system refuses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces: list[str] = []
        with naming_write_errors(path):
            self._file = open_for_writing(path)

    def write(self, text: str) -> None:
        """Append `text`."""
        self._pieces.append(text)
        if len(self._pieces) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand all text to the system."""
        pieces, self._pieces = self._pieces, []
        try:
            self._file.write("".join(pieces))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        with naming_write_errors(self.path):
            self._file.close()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


class CsvTable:
    """A CSV file with a header and one row for each call of `add`."""

    def __init__(self, file: RowFile, columns: Iterable[str]) -> None:
        self._file = file
        file.write(",".join(columns) + "\n")

    def add(self, cells: Iterable[Cell]) -> None:
        """Append one row. Numbers have as many digits as read back to the same value."""
        texts = [repr(each) if type(each) in _NUMBERS else cell_text(each) for each in cells]
        self._file.write(",".join(texts) + "\n")

    def add_line(self, line: str) -> None:
        """Append the text of a row, its end of line included, which takes less time than its cells."""
        self._file.write(line)


def cell_text(value: Cell) -> str:
    """Return the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value if value.isidentifier() else _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    if not any(each in text for each in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


class JsonItems:
    """A JSON array inside of a text file, with one item on each line."""

    def __init__(self, file: RowFile, before: str = "[", after: str = "]\n") -> None:
        """`before` and `after` are the text around the items, brackets included."""
        self._file = file
        self._separator = before + "\n"
        self._empty = before
        self._after = after
        self._has_items = False

    def add(self, item: object) -> None:
        """Append one item of plain values."""
        self._has_items = True
        self._file.write(self._separator + orjson.dumps(item).decode())
        self._separator = ",\n"

    def end(self) -> None:
        """Close the array."""
        self._file.write(("\n" if self._has_items else self._empty) + self._after)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Iterable[Cell]]) -> None:
    """Write a whole CSV file. Raises TraceError."""
    with RowFile(path) as file:
        table = CsvTable(file, columns)
        for row in rows:
            table.add(row)
