"""Vidur's traces: CSV with token counts, and seconds since the start where requests have times of their own."""

from collections import Counter

from traces.importers.reading import MAX_S, Unread, drawn_arrivals_us, workload
from traces.importers.registry import ConvertOptions, Imported
from traces.rows import TraceRow
from traces.table import Column, read_table

_COLUMNS = (
    Column("arrived_at", float, default=None, at_least=0, at_most=MAX_S),
    Column("num_prefill_tokens", int, required=True, at_least=0),
    Column("num_decode_tokens", int, required=True, at_least=0),
)


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace; without times they arrive at --rate. Raises BlisError."""
    table = read_table(options.path, _COLUMNS)
    given = table.columns["arrived_at"]
    has_times = any(at_s is not None for at_s in given)
    if has_times and None in given:
        raise table.cell_error(given.index(None), "arrived_at", "a time, as other rows have one", "")
    arrivals_us = [round(at_s * 1e6) for at_s in given] if has_times else drawn_arrivals_us(options, len(given))
    lengths = zip(table.columns["num_prefill_tokens"], table.columns["num_decode_tokens"], strict=True)
    rows = [
        TraceRow(request_id=place, arrival_time_us=arrivals_us[place], input_tokens=read, output_tokens=made)
        for place, (read, made) in enumerate(lengths)
    ]
    notes = ("--rate has no effect, the file has arrival times",) if has_times and options.rate else ()
    return workload(options, rows, Counter(), (*notes, *Unread(table).note()))
