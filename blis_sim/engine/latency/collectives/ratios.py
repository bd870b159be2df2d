"""How much of a bus's bandwidth a collective reaches, by its size and by the nodes of its group: SimAI's ratio tables.

Facts: astra-sim, system/AstraNetworkAPI and the tables in inputs/ratio.
"""

import csv
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from blis_sim.engine.errors import EngineError

_COLUMN_OF_NODES = {1: 1, 2: 2, 4: 3, 8: 4, 16: 5, 32: 6, 64: 7, 128: 8, 9: 9}
_USUAL_COLUMN = 5
"""Column of 16 nodes, for all other numbers of nodes."""


@dataclass(frozen=True, slots=True)
class RatioTable:
    """One table: ascending sizes in bytes, and for each of them a ratio by column."""

    sizes: tuple[int, ...]
    ratios: tuple[tuple[float, ...], ...]

    def ratio(self, num_nodes: int, size_bytes: int) -> float:
        """Return the share of the bandwidth, relative to that of the largest size."""
        if not size_bytes:
            return 1.0
        column = _COLUMN_OF_NODES.get(num_nodes, _USUAL_COLUMN)
        values = [row[column - 1] for row in self.ratios]
        if not values[-1]:
            raise EngineError(f"the ratio tables have no figures for {num_nodes} nodes")
        if size_bytes < self.sizes[0]:
            return values[0] / values[-1]
        low = min(bisect_right(self.sizes, size_bytes) - 1, len(self.sizes) - 2)
        share = (size_bytes - self.sizes[low]) / (self.sizes[low + 1] - self.sizes[low])
        return (values[low] + (values[low + 1] - values[low]) * share) / values[-1]


@dataclass(frozen=True, slots=True)
class Ratios:
    """The three tables of a folder."""

    nic: RatioTable
    nvlink: RatioTable
    all_to_all: RatioTable


def read_ratios(folder: str) -> Ratios:
    """Read nic_ratio.csv, nvlink_ratio.csv and ata_ratio.csv of a folder. Raises EngineError."""
    return Ratios(*(_read(Path(folder) / f"{name}_ratio.csv") for name in ("nic", "nvlink", "ata")))


def _read(path: Path) -> RatioTable:
    try:
        rows = [row for row in csv.reader(path.read_text().splitlines()) if any(row)][1:]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EngineError(f"{path}: expected a table of ratios by size, {error}") from None
    if len(rows) < 2:
        raise EngineError(f"{path}: expected a line of names and at least 2 rows of ratios, got {len(rows)} rows")
    sizes: list[int] = []
    ratios: list[tuple[float, ...]] = []
    width = max(_COLUMN_OF_NODES.values())
    for line, row in enumerate(rows, 2):
        try:
            sizes.append(int(row[0]))
            ratios.append(tuple(float(cell or 0) for cell in [*row[1:], *[""] * width][:width]))
        except ValueError:
            raise EngineError(f"{path} line {line}: expected a size and ratios, got {','.join(row)[:60]}") from None
        if (line > 2 and sizes[-1] <= sizes[-2]) or not all(0 <= value <= 1 for value in ratios[-1]):
            raise EngineError(f"{path} line {line}: expected an ascending size and ratios from 0 to 1, got {row[0]}")
    return RatioTable(tuple(sizes), tuple(ratios))
