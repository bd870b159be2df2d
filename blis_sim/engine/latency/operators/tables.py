"""Lookup tables of a layer's operators: milliseconds by tokens, by decodes and context, by prompt chunk and context."""

import math
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blis_sim.engine.errors import EngineError
from blis_sim.options.files import read_given

COMPUTE_OPERATORS = (
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_down_proj",
    "mlp_act",
    "attn_rope",
    "attn_kv_cache_save",
    "input_layernorm",
    "post_attention_layernorm",
    "add",
    "all_reduce",
    "send_recv",
)
"""Operators whose time depends on the tokens of a step alone. A table without a column of one takes it as 0."""


class Line:
    """Values at ascending whole numbers, with straight lines between them that go on beyond both ends."""

    __slots__ = ("places", "values")

    def __init__(self, places: Sequence[int], values: Sequence[float]) -> None:
        self.places = list(places)
        self.values = list(values)

    def at(self, place: float) -> float:
        """Return the value at `place`, at least 0."""
        low, share = interval(self.places, place)
        values = self.values
        if not share:
            return values[low]
        return max(0.0, values[low] + (values[low + 1] - values[low]) * share)


class Grid:
    """Values at the crossings of two ascending axes; between and beyond them bilinear."""

    __slots__ = ("columns", "rows", "values")

    def __init__(self, rows: Sequence[int], columns: Sequence[int], values: Sequence[Sequence[float]]) -> None:
        self.rows = list(rows)
        self.columns = list(columns)
        self.values = [list(line) for line in values]

    def at(self, row: float, column: float) -> float:
        """Return the value at `row` and `column`, at least 0."""
        upper, row_share = interval(self.rows, row)
        left, share = interval(self.columns, column)
        line = self.values[upper]
        value = line[left] + (line[left + 1] - line[left]) * share if share else line[left]
        if row_share:
            line = self.values[upper + 1]
            below = line[left] + (line[left + 1] - line[left]) * share if share else line[left]
            value += (below - value) * row_share
        return max(0.0, value)


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """Times of the operators of one layer, in milliseconds."""

    compute: dict[str, Line]
    """By the name of an operator, over the tokens of a step."""
    decode: Grid
    """Attention of decodes: over their number, and over the tokens in the KV cache of each."""
    prefill: Grid
    """Attention of prompts: over the tokens computed, and over those in the KV cache before."""
    cpu: Line | None = None
    """The time of the CPU for a step, over its requests; None where that was not measured."""


def interval(places: list[int], place: float) -> tuple[int, float]:
    """Return the index of the last of `places` up to `place`, and the share of the way from there to the next one.

    Beyond the ends the first and the last two places are what counts; the share is 0 where there is one place.
    """
    most = len(places) - 2
    if most < 0:
        return 0, 0.0
    low = min(max(bisect_right(places, place) - 1, 0), most)
    share = (place - places[low]) / (places[low + 1] - places[low])
    return (low + 1, 0.0) if share == 1 else (low, share)


def read_lookup_tables(prefix: str) -> OperatorTables:
    """Read PREFIX_compute.csv, PREFIX_attn_decode.csv and PREFIX_attn_prefill.csv, gzipped or not.

    Raises EngineError that names the file, the row and the column.
    """
    compute = _rows(prefix, "compute")
    columns = {name: place for place, name in enumerate(compute.header)}
    tokens = compute.whole_numbers("num_tokens")
    lines = {
        name: Line(tokens, compute.numbers(name)) if name in columns else Line([1], [0.0]) for name in COMPUTE_OPERATORS
    }
    return OperatorTables(
        lines, _decode_grid(_rows(prefix, "attn_decode")), _prefill_grid(_rows(prefix, "attn_prefill"))
    )


def _decode_grid(table: "_Rows") -> Grid:
    sizes, contexts = (
        table.whole_numbers("batch_size", ascends=False),
        table.whole_numbers("kv_cache_size", ascends=False),
    )
    values = dict(zip(zip(sizes, contexts, strict=True), table.numbers("prediction"), strict=True))
    rows, columns = sorted(set(sizes)), sorted(set(contexts))
    missing = next(((row, column) for row in rows for column in columns if (row, column) not in values), None)
    if missing is not None:
        raise EngineError(
            f"{table.path}: expected a row for batch_size {missing[0]}, kv_cache_size {missing[1]}, got none"
        )
    return Grid(rows, columns, [[values[row, column] for column in columns] for row in rows])


def _prefill_grid(table: "_Rows") -> Grid:
    names = [name for name in table.header if name.startswith("kv")]
    if not names or not all(name[2:].isdecimal() for name in names):
        raise EngineError(
            f"{table.path} line 1: expected columns kv0, kv64 and so on, got {','.join(table.header)[:80]}"
        )
    contexts = [int(name[2:]) for name in names]
    if contexts != sorted(set(contexts)):
        raise EngineError(
            f"{table.path} line 1: expected columns kv0, kv64 and so on, each once and in ascending order"
        )
    by_column = [table.numbers(name) for name in names]
    return Grid(table.whole_numbers("prefill_chunk_size"), contexts, list(zip(*by_column, strict=True)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """A CSV file of numbers."""

    path: Path
    header: list[str]
    lines: list[str]
    values: npt.NDArray[np.float64] | None
    """None where a cell is no number."""

    def numbers(self, name: str) -> list[float]:
        """Return a column of numbers of at least 0."""
        if name not in self.header:
            raise EngineError(f"{self.path} line 1: the column {name} is missing, found {', '.join(self.header)[:120]}")
        place = self.header.index(name)
        if self.values is not None and self.values.shape[1] > place:
            column = self.values[:, place]
            if column.min() >= 0 and column.max() < math.inf:
                found: list[float] = column.tolist()
                return found
        return [self._number(number, line, name, place) for number, line in enumerate(self.lines, 2)]

    def _number(self, number: int, line: str, name: str, place: int) -> float:
        cells = line.split(",")
        text = cells[place].strip() if place < len(cells) else ""
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise EngineError(
                f"{self.path} line {number} column {name}: expected a number of at least 0, got {text[:40]!r}"
            )
        return value

    def whole_numbers(self, name: str, *, ascends: bool = True) -> list[int]:
        """Return a column of whole numbers, in ascending order unless it need not be."""
        found = self.numbers(name)
        for line, value in enumerate(found, 2):
            if value != int(value) or (ascends and line > 2 and value <= found[line - 3]):
                raise EngineError(
                    f"{self.path} line {line} column {name}: expected a whole number"
                    f"{' above the one before' if ascends else ''}, got {value:g}"
                )
        return [int(value) for value in found]


def _rows(prefix: str, kind: str) -> _Rows:
    """Read one of the tables of `prefix`."""
    paths = [Path(f"{prefix}_{kind}.csv{ending}") for ending in (".gz", "")]
    path = next((each for each in paths if each.exists()), None)
    if path is None:
        raise EngineError(f"{paths[0]}: no such file, nor one without .gz")
    try:
        lines = read_given(path).decode("utf-8-sig").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: expected a CSV file, {error}") from None
    lines = [line for line in lines if line.strip()]
    if len(lines) < 2:
        raise EngineError(f"{path}: expected a first line with the names of columns, and rows, got {len(lines)} lines")
    try:
        values = np.loadtxt(lines[1:], delimiter=",", ndmin=2, comments=None)
    except ValueError:
        values = None  # the cell is named where its column is read
    return _Rows(path, [name.strip() for name in lines[0].split(",")], lines[1:], values)
