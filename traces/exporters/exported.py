"""A trace as an exporter takes it, and the outcome of the export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traces.header import TraceHeader
from traces.rows import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ToExport:
    """A trace, and the file to write it to."""

    header: TraceHeader
    rows: Sequence[TraceRow]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Things that were not written: rows by reason, and notes on columns that have no place in the format."""

    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def prompt_tokens(row: TraceRow) -> int:
    """Return the tokens of the whole prompt, as the server counted them where it did."""
    return row.server_input_tokens or row.prefix_length + row.input_tokens


def lost(rows: Sequence[TraceRow], kept: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a note about the columns with values in some row that a format has no place for, beside those `kept`."""
    columns = {
        "client_id": "",
        "tenant_id": "",
        "slo_class": "",
        "session_id": "",
        "prefix_group": "",
        "context_tokens": 0,
        "model": "",
        "adapter": "",
        "parents": "",
        "first_chunk_time_us": 0,
        "status": "",
    }
    found = [
        name for name, empty in columns.items() if name not in kept and any(getattr(row, name) != empty for row in rows)
    ]
    return (f"there is no place for {', '.join(found)}",) if found else ()
