"""The files of a proxy's recording: rows, token times and contents, in one part or in several by size and time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from observe.output_paths import OutputPaths, stem_of
from observe.workloads.workload import SESSION_COLUMNS
from traces import ItlWriter, TraceHeader, TraceRow, TraceWriter, read_cut_itl, read_cut_rows, write_header
from traces.content.recorded import ContentWriter, kept_lines
from traces.content.redaction import Redactor

COLUMNS = SESSION_COLUMNS | {"vllm_priority"}


def part_paths(paths: OutputPaths, number: int) -> OutputPaths:
    """The files of a part of the recording at these paths."""
    stem = f"{stem_of(paths.data)}-{number:04d}"
    return OutputPaths(
        Path(f"{stem}.yaml"),
        Path(f"{stem}{''.join(paths.data.suffixes[-2:] if paths.data.suffix == '.gz' else ['.csv'])}"),
        None if paths.itl is None else Path(f"{stem}.itl.csv"),
        None,
        None if paths.content is None else Path(f"{stem}.content.jsonl"),
    )


def part_numbers(paths: OutputPaths) -> list[int]:
    """The parts that are there, in order."""
    stem = Path(stem_of(paths.data))
    pattern = re.compile(re.escape(stem.name) + r"-([0-9]{4,})\.yaml")
    there = [pattern.fullmatch(each.name) for each in stem.parent.glob("*.yaml")]
    return sorted(int(found[1]) for found in there if found is not None)


@dataclass(frozen=True, slots=True)
class EarlierPart:
    """Contents of a part of a recording that is gone on with."""

    rows: list[TraceRow]
    chunks: dict[int, list[int]]
    content: list[str]


def read_part(paths: OutputPaths) -> EarlierPart:
    """Read a part whose writer may have been killed. Raises TraceError."""
    rows = read_cut_rows(paths.data) if paths.data.is_file() else []
    there = {row.request_id for row in rows}
    chunks = read_cut_itl(paths.itl) if paths.itl is not None and paths.itl.is_file() else {}
    content = kept_lines(paths.content) if paths.content is not None and paths.content.is_file() else []
    return EarlierPart(rows, {number: times for number, times in chunks.items() if number in there}, content)


@dataclass(slots=True)
class PartWriter:
    """Writes a recording; begins another part when the present one is large or old. Raises TraceError and OSError."""

    paths: OutputPaths
    header: TraceHeader
    redactor: Redactor
    rotate_bytes: float
    rotate_s: float
    number: int = 1
    earlier: EarlierPart | None = None
    num_parts: int = 0
    _num_bytes: int = 0
    _began: float = 0.0
    _rows: TraceWriter = field(init=False)
    _itl: ItlWriter | None = field(init=False, default=None)
    _content: ContentWriter | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._open()

    @property
    def is_rotated(self) -> bool:
        """Whether the recording is written in parts."""
        return bool(self.rotate_bytes or self.rotate_s)

    def write(
        self, rows: Sequence[TraceRow], chunks: Sequence[tuple[int, Sequence[int]]], content: Sequence[str]
    ) -> None:
        """Append what has ended; the row is there only when all that belongs to it is.

        Another part begins before if the present one is large or old.
        """
        self._rotate_if_due()
        if self._content is not None and content:
            self._content.write_lines(content)
        if self._itl is not None and chunks:
            self._itl.write_all(chunks)
        lines = [self._rows.line(row) for row in rows]
        self._rows.write_lines(lines)
        num_chunk_bytes = 28 * sum(len(times) for _, times in chunks) if self._itl is not None else 0
        self._num_bytes += sum(map(len, lines)) + sum(map(len, content)) + num_chunk_bytes

    def _rotate_if_due(self) -> None:
        is_large = self.rotate_bytes and self._num_bytes >= self.rotate_bytes
        is_old = self.rotate_s and monotonic() - self._began >= self.rotate_s
        if self._num_bytes and (is_large or is_old):
            self.close()
            self.number += 1
            self._open()

    def close(self) -> None:
        """Close the files of the present part."""
        for writer in (self._rows, self._itl, self._content):
            if writer is not None:
                writer.close()

    def _open(self) -> None:
        paths = part_paths(self.paths, self.number) if self.is_rotated else self.paths
        earlier, self.earlier = self.earlier, None
        if earlier is None:
            write_header(paths.header, replace(self.header), in_place=True)
        if paths.content is not None:
            self._content = ContentWriter(paths.content, self.redactor, earlier.content if earlier else None)
        if paths.itl is not None:
            self._itl = ItlWriter(paths.itl, earlier.chunks if earlier else None)
        self._rows = TraceWriter(paths.data, COLUMNS, earlier.rows if earlier else None)
        there = (paths.data, paths.itl, paths.content) if earlier and earlier.rows else ()
        self._num_bytes = sum(path.stat().st_size for path in there if path is not None and path.is_file())
        self._began = monotonic()
        self.num_parts += 1
