"""Token times of a recording: when each chunk of each request arrived. CSV, gzipped if named `.gz`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from blis_sim.options.limits import LATEST_US
from traces.append_file import AppendFile, open_with_header, whole_records
from traces.table import Column, Table, read_table

ITL_COLUMNS = (
    Column("request_id", int, "the request's number, as in the trace", required=True),
    Column("chunk_index", int, "the chunk's place in the reply, from 0", required=True, at_least=0),
    Column(
        "timestamp_us",
        int,
        "when it arrived, on the clock of send_time_us",
        required=True,
        at_least=0,
        at_most=LATEST_US,
    ),
)
_HEADER = ",".join(column.name for column in ITL_COLUMNS)


def read_itl(path: Path | str) -> dict[int, list[int]]:
    """Chunk times in microseconds per request, requests in the order of the file, chunks by their index.

    Raises TraceError.
    """
    return _chunks(read_table(Path(path), ITL_COLUMNS))


def read_cut_itl(path: Path | str) -> dict[int, list[int]]:
    """Read the chunk times of a file whose writer may have been killed. The last request may lack chunks. Raises
    TraceError."""
    text = whole_records(Path(path))
    return _chunks(read_table(Path(path), ITL_COLUMNS, text)) if text else {}


def _chunks(table: Table) -> dict[int, list[int]]:
    columns = table.columns
    import numpy as np  # most readers and writers of a trace do not need numpy

    request_ids = np.array(columns["request_id"], dtype=np.int64)
    timestamps = np.array(columns["timestamp_us"], dtype=np.int64)
    order = np.lexsort((np.array(columns["chunk_index"], dtype=np.int64), request_ids))
    ids, starts = np.unique(request_ids[order], return_index=True)
    pieces = np.split(timestamps[order], starts[1:]) if len(ids) else []
    chunks = {int(request_id): piece.tolist() for request_id, piece in zip(ids, pieces, strict=True)}
    return {request_id: chunks[request_id] for request_id in dict.fromkeys(columns["request_id"])}


class ItlWriter:
    """Appends the chunk times of whole requests to a new file, each with the operating system before the next.

    With `kept` it takes the place of a file that has these chunks per request. Raises TraceError when the file cannot
    be made. With `joins` it appends to a file that another writer has made, along with others.
    """

    def __init__(
        self, path: Path | str, kept: Mapping[int, Sequence[int]] | None = None, *, joins: bool = False
    ) -> None:
        if joins:
            self._file = AppendFile(Path(path), joins=True)
            return
        pieces = None if kept is None else (_piece(*each) for each in kept.items())
        self._file = open_with_header(Path(path), _HEADER, pieces)

    def write(self, request_id: int, timestamps_us: Sequence[int]) -> None:
        """Append the chunks of one request, in the order they arrived."""
        self._file.write(_piece(request_id, timestamps_us))

    def write_all(self, requests: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Append the chunks of several requests; all of them, or none if there is no room."""
        self._file.write("".join([_piece(*each) for each in requests]))

    def close(self) -> None:
        """Close the file; nothing can be written afterwards."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _piece(request_id: int, timestamps_us: Sequence[int]) -> str:
    return "".join([f"{request_id},{place},{time}\n" for place, time in enumerate(timestamps_us)])
