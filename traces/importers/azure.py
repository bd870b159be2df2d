"""Azure's LLM inference traces: CSV with the time of each request, its token counts, and in 2025 its images."""

from collections import Counter
from datetime import UTC, datetime

from traces.importers.reading import Unread, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.table import Column, Table, read_table

_COLUMNS = (
    Column("timestamp", str, required=True),
    Column("contexttokens", int, required=True, at_least=0),
    Column("generatedtokens", int, required=True, at_least=0),
    Column("numimages", int, default=0, at_least=0),
)


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace. Raises TraceError."""
    table = read_table(options.path, _COLUMNS)
    cells = zip(*(table.columns[column.name] for column in _COLUMNS), strict=True)
    rows = [
        TraceRow(request_id=place, arrival_time_us=_time_us(table, place, text), input_tokens=read, output_tokens=made)
        for place, (text, read, made, _) in enumerate(cells)
    ]
    left_out: Counter[str] = Counter()
    left_out["images (NumImages): the file does not say which of ContextTokens are theirs"] = sum(
        table.columns["numimages"]
    )
    unread = Unread()
    unread.add_columns(table)
    return Imported(
        header=workload_header(options.path.name),
        rows=sendable_rows(options, rows, left_out),
        left_out=left_out,
        notes=unread.note(),
    )


def _time_us(table: Table, row: int, text: str) -> int:
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise table.cell_error(row, "TIMESTAMP", "a time such as 2023-11-16 18:15:46.680", text) from None
    at = time if time.tzinfo else time.replace(tzinfo=UTC)
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
