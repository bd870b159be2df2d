"""BurstGPT traces: CSV with seconds since the start, the model, token counts and where the request came from.

Since release 1.2 the rows of a conversation have its id, and rows the seconds until the whole reply was there.
"""

from collections import Counter
from collections.abc import Iterator

from traces.importers.reading import MAX_S, Unread, workload
from traces.importers.registry import ConvertOptions, Imported
from traces.rows import TraceRow
from traces.table import Column, Table, read_table

_COLUMNS = (
    Column("timestamp", float, required=True, at_least=0, at_most=MAX_S),
    Column("request tokens", int, required=True, at_least=0),
    Column("response tokens", int, required=True, at_least=0),
    Column("log type", str, default=""),
    Column("model", str, default=""),
    Column("session id", str, default="", trimmed=True),
    Column("elapsed time", float, default=None, at_least=0, at_most=MAX_S),
    Column("total tokens", int, default=None, at_least=0),
)


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace, those that failed (no response tokens) left out. Raises TraceError.

    Model and log type become client and tenant: a model of its own would be asked of a server that has another.
    """
    table = read_table(options.path, _COLUMNS)
    left_out: Counter[str] = Counter()
    rows = list(_rows(table, left_out))
    notes = ["the model of a request stands in client_id, its log type in tenant_id"]
    if any(row.think_time_us for row in rows):
        notes.append("pauses in a conversation are what is left of the time between its requests after Elapsed time")
    return workload(options, rows, left_out, [*notes, *Unread(table).note()])


def _rows(table: Table, left_out: Counter[str]) -> Iterator[TraceRow]:
    replied_us: dict[str, int | None] = {}
    rounds: Counter[str] = Counter()
    cells = zip(*(table.columns[column.name] for column in _COLUMNS), strict=True)
    in_time = sorted(enumerate(cells), key=lambda each: float(each[1][0]))
    for place, (at_s, read, made, log_type, model, session, elapsed_s, total) in in_time:
        if total is not None and total != read + made:
            raise table.row_error(place, f"Total tokens {read + made}, the sum of the other two, got {total}")
        at_us = round(at_s * 1e6)
        session_id = session.removesuffix(".0")
        before_us = replied_us.get(session_id) if session_id else None
        yield TraceRow(
            request_id=place,
            client_id=model,
            tenant_id=log_type,
            session_id=session_id,
            round_index=rounds[session_id] if session_id else 0,
            arrival_time_us=at_us,
            input_tokens=read,
            output_tokens=made,
            think_time_us=0 if before_us is None else max(0, at_us - before_us),
        )
        if session_id and read and made:
            rounds[session_id] += 1
            replied_us[session_id] = None if elapsed_s is None else at_us + round(elapsed_s * 1e6)
        elif elapsed_s is not None:
            left_out["values of Elapsed time of requests without a conversation or a reply"] += 1
