"""Rows with named columns, for pandas, Arrow and plain Python."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from blis_sim.options import BlisError


class MissingExtraError(BlisError, ImportError):
    """A library that an extra of the installation brings is not there."""


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """Columns of equal length by name. Iteration gives the rows as dictionaries."""

    columns: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = list(self.columns)
        for cells in zip(*self.columns.values(), strict=True):
            yield dict(zip(names, cells, strict=True))

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self.columns[name]

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.columns)})"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Raises MissingExtraError without pandas."""
        return _library("pandas", "pandas").DataFrame(dict(self.columns))

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table. Raises MissingExtraError without pyarrow."""
        return _library("pyarrow", "parquet").table({name: list(each) for name, each in self.columns.items()})


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of rows; a cell that a row lacks is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: [row.get(name) for row in rows] for name in names})


def _library(name: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{name} is missing: pip install 'blis-mockserve[{extra}]'") from error
