"""Azure's LLM inference traces: CSV with the time of each request, its token counts, and in 2025 its images."""

from collections import Counter

from traces.importers.reading import Unread, unix_us, workload
from traces.importers.registry import ConvertOptions, Imported
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
    return workload(options, rows, left_out, Unread(table).note())


def _time_us(table: Table, row: int, text: str) -> int:
    try:
        return unix_us(text.strip())
    except ValueError:
        raise table.cell_error(row, "TIMESTAMP", "a time such as 2023-11-16 18:15:46.680", text) from None
