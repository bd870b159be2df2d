"""File formats of recordings and results: what `observe` writes, `replay` and `calibrate` read.

Read `rows.py` first: the columns of a trace. `trace_v2.py` reads and writes them, and the header of the whole. Of our
packages, only `blis_sim.options` is imported here.
"""

from blis_sim.options.durations import parse_duration_ms
from blis_sim.options.file_fields import number_text
from traces.append_file import JsonLinesWriter
from traces.rows import TRACE_COLUMNS, ResultRow, TraceRow, columns_worth_writing, read_results, write_results
from traces.slo import SloTargets, slo_targets
from traces.text_file import TraceError, dump_json, write_json
from traces.trace_v2 import (
    ItlWriter,
    Trace,
    TraceHeader,
    TraceWriter,
    beside,
    read_cut_itl,
    read_cut_rows,
    read_header,
    read_itl,
    read_rows,
    read_trace,
    write_header,
    write_trace,
)

__all__ = [
    "TRACE_COLUMNS",
    "ItlWriter",
    "JsonLinesWriter",
    "ResultRow",
    "SloTargets",
    "Trace",
    "TraceError",
    "TraceHeader",
    "TraceRow",
    "TraceWriter",
    "beside",
    "columns_worth_writing",
    "dump_json",
    "number_text",
    "parse_duration_ms",
    "read_cut_itl",
    "read_cut_rows",
    "read_header",
    "read_itl",
    "read_results",
    "read_rows",
    "read_trace",
    "slo_targets",
    "write_header",
    "write_json",
    "write_results",
    "write_trace",
]
