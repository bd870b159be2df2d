"""The files of a recording."""

from dataclasses import dataclass
from pathlib import Path

_ROWS = (".csv", ".csv.gz")
_BESIDE_ROWS = (".itl.csv", ".itl.csv.gz", ".metrics.jsonl")


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """Where the files of a recording go; `itl` is None when token times are not recorded, `metrics` when those of the
    server are not."""

    header: Path
    data: Path
    itl: Path | None
    metrics: Path | None = None

    @property
    def rows(self) -> list[Path]:
        """Where an earlier recording of this name may have its rows."""
        return list(dict.fromkeys([self.data, *(Path(stem_of(self.data) + each) for each in _ROWS)]))

    @property
    def others(self) -> list[Path]:
        """Where it may have what belongs to its rows."""
        known = [self.header, *(each for each in (self.itl, self.metrics) if each is not None)]
        return list(dict.fromkeys([*known, *(Path(stem_of(self.data) + each) for each in _BESIDE_ROWS)]))


def stem_of(data: Path) -> str:
    """What the names of the files begin with that lie beside these rows."""
    return f"{data}".removesuffix(".gz").removesuffix(".csv")
