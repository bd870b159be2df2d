"""The places of the operators' lookup tables that the reference runs of Vidur and SimAI look up."""

import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.latency.operators import Grid, Line, OperatorTables, read_lookup_tables
from blis_sim.wings.vidur import latency

GRANULE_TOKENS = 64
"""Distance of the contexts of the tables."""


@dataclass(slots=True)
class UsedPlaces:
    """Places of the tables of one deployment."""

    tokens: set[int] = field(default_factory=set)
    decodes: set[tuple[int, int]] = field(default_factory=set)
    prefills: set[tuple[int, int]] = field(default_factory=set)

    @property
    def sizes(self) -> set[int]:
        """Return the batch sizes of decodes."""
        return {size for size, _ in self.decodes}

    @property
    def chunks(self) -> set[int]:
        """Return the tokens of prompts."""
        return {chunk for chunk, _ in self.prefills}


@cache
def used_places(golden: Path) -> dict[str, UsedPlaces]:
    """Return the places by the name of the tables: all runs of the reference are simulated with a record of them."""
    from tests.wings.vidur import goldens, simai_goldens

    lines: dict[int, set[float]] = {}
    grids: dict[int, set[tuple[float, float]]] = {}
    read: list[tuple[str, OperatorTables]] = []
    line_at, grid_at = Line.at, Grid.at

    def noted_line_at(self: Line, place: float) -> float:
        lines.setdefault(id(self), set()).add(place)
        return line_at(self, place)

    def noted_grid_at(self: Grid, row: float, column: float) -> float:
        grids.setdefault(id(self), set()).add((row, column))
        return grid_at(self, row, column)

    def noted_tables(prefix: str, _options: object) -> OperatorTables:
        tables = read_lookup_tables(prefix)
        read.append((Path(prefix).name, tables))
        return tables

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Line, "at", noted_line_at)
        patch.setattr(Grid, "at", noted_grid_at)
        patch.setattr(latency, "SOURCES", {"vidur-tables": noted_tables})
        for name in goldens.NAMES:
            with tempfile.TemporaryDirectory() as out:
                goldens.simulated(golden / "vidur" / name, Path(out))
        for is_original in (True, False):
            with tempfile.TemporaryDirectory() as out:
                simai_goldens.simulated_pools(golden / "vidur", Path(out), is_original=is_original)
    found: dict[str, UsedPlaces] = {}
    for name, tables in read:
        used = found.setdefault(name, UsedPlaces())
        for line in tables.compute.values():
            used.tokens.update(_around(lines.get(id(line), ()), 1))
        used.decodes.update(_places(grids.get(id(tables.decode), ())))
        used.prefills.update(_places(grids.get(id(tables.prefill), ())))
    return found


def _places(places: Any) -> Iterable[tuple[int, int]]:
    for row, column in places:
        for each in _around([row], 1):
            for context in _around([column], GRANULE_TOKENS):
                yield each, context


def _around(places: Iterable[float], step: int) -> Iterable[int]:
    for place in places:
        yield from {math.floor(place / step) * step, math.ceil(place / step) * step}
