"""The files of a recording."""

from dataclasses import dataclass
from pathlib import Path

_ROWS = (".csv", ".csv.gz")
_BESIDE_ROWS = {
    ".itl.csv": "token times",
    ".itl.csv.gz": "token times",
    ".metrics.jsonl": "server metrics",
    ".content.jsonl": "content",
    ".server.yaml": "server settings",
}


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """Paths of the files of a recording; `itl` is None when token times are not recorded, `metrics` when those of the
    server are not, `content` when requests and replies are not."""

    header: Path
    data: Path
    itl: Path | None
    metrics: Path | None = None
    content: Path | None = None

    @property
    def rows(self) -> list[Path]:
        """Paths at which an earlier recording of this name may have its rows."""
        return list(dict.fromkeys([self.data, *(Path(stem_of(self.data) + each) for each in _ROWS)]))

    @property
    def companion_files(self) -> list[Path]:
        """Paths at which an earlier recording of this name may have files beside its rows."""
        return [path for path, kind in self.kinds.items() if kind != "rows"]

    @property
    def rows_and_companions(self) -> list[Path]:
        """Paths of the files of this recording that are written piece by piece."""
        return [path for path in (self.data, self.itl, self.metrics, self.content) if path is not None]

    @property
    def kinds(self) -> dict[Path, str]:
        """All files that may belong to an earlier recording of this name, each with its kind."""
        known = {
            self.header: "header",
            self.itl: "token times",
            self.metrics: "server metrics",
            self.content: "content",
        }
        found = {path: kind for path, kind in known.items() if path is not None}
        beside = {Path(stem_of(self.data) + ending): kind for ending, kind in _BESIDE_ROWS.items()}
        return {**found, **{path: kind for path, kind in beside.items() if path not in found}, **self._kinds_of_rows}

    @property
    def _kinds_of_rows(self) -> dict[Path, str]:
        return dict.fromkeys(self.rows, "rows")


def stem_of(data: Path) -> str:
    """The common beginning of the names of files beside these rows."""
    return f"{data}".removesuffix(".gz").removesuffix(".csv")
