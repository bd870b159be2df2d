"""The rows of a sweep: a CSV file that grows as points are computed, in order when all are, and a Parquet file."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.runner.commands import digest_of
from blis_sim.bench.runner.plan import Plan, Point
from blis_sim.bench.runner.simulate import COSTS, FIGURES, LATER_FIGURES, ORIGIN, Outcome, costs
from traces.append_file import AppendFile, complete_records, open_with_header
from traces.text_file import replacing

POINT_COLUMN = "point"
ERROR_COLUMN = "error"


@dataclass(frozen=True, slots=True)
class Row:
    """A point that has been computed."""

    key: str
    point: Point
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of rows: settings that vary, the price of a GPU-hour, and the points by key."""

    varied: Sequence[str]
    gpu_cost_per_hour: float | None
    points: Mapping[str, Point]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        return [
            POINT_COLUMN,
            *self.varied,
            *FIGURES,
            *(COSTS if self.gpu_cost_per_hour is not None else ()),
            *(name for name in ORIGIN if name not in self.varied),
            ERROR_COLUMN,
        ]

    def cells(self, row: Row) -> dict[str, Any]:
        """The cells of a row by column; None for a missing value."""
        figures = row.outcome.figures
        priced = {} if self.gpu_cost_per_hour is None else costs(figures, self.gpu_cost_per_hour)
        known = {
            POINT_COLUMN: row.key,
            **row.outcome.origin,
            **row.point.varied,
            **figures,
            **priced,
            ERROR_COLUMN: row.outcome.error,
        }
        return {name: known.get(name) for name in self.columns}

    def line(self, row: Row) -> str:
        """The line of a row in the file."""
        return _line(_text(cell) for cell in self.cells(row).values())

    def in_order(self, rows: Sequence[Row]) -> list[Row]:
        """The rows in the order of their points."""
        return sorted(rows, key=lambda row: row.point.number)


def table_of(plan: Plan, points: Sequence[Point], gpu_cost_per_hour: float | None) -> Table:
    """Return the columns and the points of a plan's rows."""
    keys = {digest_of(plan.simulation.name, point.settings): point for point in points}
    return Table(varied=plan.varied, gpu_cost_per_hour=gpu_cost_per_hour, points=keys)


def read_rows(path: Path, table: Table) -> list[Row]:
    """The rows with figures that a file has already, one for each point; a last line that was cut is none.

    Raises BlisError when they are of other points than those of the table.
    """
    if not path.is_file():
        return []
    advice = "give another --output, or --overwrite to begin anew"
    try:
        records = list(csv.reader(StringIO(complete_records(path))))
    except csv.Error as error:
        raise BenchError(f"{path}: expected comma-separated cells, {error}: {advice}") from error
    if not records:
        return []
    columns, *cells = records
    needed = [name for name in FIGURES if name not in LATER_FIGURES]
    missing = [name for name in (POINT_COLUMN, ERROR_COLUMN, *table.varied, *needed) if name not in columns]
    if missing:
        raise BenchError(f"{path}: is no sweep of these settings, it has no column {missing[0]}: {advice}")
    rows: dict[str, Row] = {}
    for record in filter(None, cells):
        if len(record) != len(columns):
            raise BenchError(f"{path}: expected {len(columns)} cells as in the header, got {len(record)}: {advice}")
        found = dict(zip(columns, record, strict=True))
        point = table.points.get(found[POINT_COLUMN])
        if point is None:
            raise BenchError(f"{path}: has a point of other settings, {found[POINT_COLUMN]}: {advice}")
        if not found[ERROR_COLUMN]:
            origin = {name: found[name] for name in ORIGIN if name in found}
            rows[found[POINT_COLUMN]] = Row(found[POINT_COLUMN], point, Outcome(_figures(path, found), origin=origin))
    return list(rows.values())


def open_rows(path: Path, table: Table, kept: Sequence[Row]) -> AppendFile:
    """Open the file with its header and the kept rows; an earlier file stays until these are written.

    Raises BlisError.
    """
    try:
        return open_with_header(path, ",".join(table.columns), [table.line(row) for row in kept], is_exclusive=True)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _line(cells: Iterator[str]) -> str:
    written = StringIO()
    csv.writer(written, lineterminator="\n").writerow(list(cells))
    return written.getvalue()


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return json.dumps(cell) if isinstance(cell, tuple | bool) else str(cell)


def _figures(path: Path, record: Mapping[str, str]) -> dict[str, float | int | None]:
    """The figures of a record. Raises BenchError."""
    figures: dict[str, float | int | None] = {}
    for name in FIGURES:
        try:
            figures[name] = _number(record.get(name, ""))
        except ValueError:
            raise BenchError(
                f"{path} point {record[POINT_COLUMN]} column {name}: expected a number, got {record[name]!r}"
            ) from None
    return figures


def _number(text: str) -> float | int | None:
    if not text:
        return None
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    if not isfinite(number):
        raise ValueError
    return number


def write_parquet(path: str, table: Table, rows: Sequence[Row]) -> None:
    """Write all rows, whole numbers and others as such, lists as lists. Raises BenchError."""
    import pyarrow
    from pyarrow import parquet

    cells = [table.cells(row) for row in rows]
    columns = {
        name: [list(each[name]) if isinstance(each[name], tuple) else each[name] for each in cells]
        for name in table.columns
    }
    try:
        with replacing(Path(path)) as place:
            parquet.write_table(pyarrow.table(columns), place)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {' '.join(str(error).split()).lower()}") from error
