"""BurstGPT traces: CSV with seconds since the start, the model, token counts and where the request came from."""

from collections import Counter

from traces.importers.reading import MAX_S, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.table import Column, read_table

_COLUMNS = (
    Column("timestamp", float, required=True, at_least=0, at_most=MAX_S),
    Column("request tokens", int, required=True, at_least=0),
    Column("response tokens", int, required=True, at_least=0),
    Column("log type", str, default=""),
    Column("model", str, default=""),
)


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace, those that failed (no response tokens) left out. Raises TraceError.

    Model and log type become client and tenant: a model of its own would be asked of a server that has another.
    """
    table = read_table(options.path, _COLUMNS)
    cells = zip(*(table.columns[column.name] for column in _COLUMNS), strict=True)
    rows = [
        TraceRow(
            request_id=place,
            client_id=model,
            tenant_id=log_type,
            arrival_time_us=round(at_s * 1e6),
            input_tokens=read,
            output_tokens=made,
        )
        for place, (at_s, read, made, log_type, model) in enumerate(cells)
    ]
    left_out: Counter[str] = Counter()
    notes = ("the model of a request stands in client_id, its log type in tenant_id",)
    first = sendable_rows(options, rows, left_out)
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)
