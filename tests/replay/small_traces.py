"""Traces small enough to work out by hand, written to disk as every trace is."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces import Trace, TraceHeader, TraceRow, columns_worth_writing, read_trace, write_trace


def row(request_id: int = 0, arrival_time_us: int = 0, **columns: Any) -> TraceRow:
    """A row of 10 input and 3 output tokens, unless given."""
    given: dict[str, Any] = {"input_tokens": 10, "output_tokens": 3, "streaming": True, **columns}
    return TraceRow(request_id=request_id, arrival_time_us=arrival_time_us, **given)


def written(folder: Path, rows: Iterable[TraceRow], mode: str = "generated") -> Path:
    """Write `folder/trace.yaml` and its rows; the path of the header."""
    known = list(rows)
    write_trace(folder / "trace.yaml", TraceHeader(mode=mode), known, columns_worth_writing(known, mode))
    return folder / "trace.yaml"


def trace(folder: Path, rows: Iterable[TraceRow], mode: str = "generated") -> Trace:
    """Return the rows as they come back from disk."""
    return read_trace(written(folder, rows, mode))
