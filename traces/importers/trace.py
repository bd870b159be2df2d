"""A trace of our own, to be written in another format."""

from collections import Counter

from traces.importers.arrivals import taken
from traces.importers.imported import Imported
from traces.importers.settings import ConvertOptions
from traces.trace_v2 import read_trace


def convert(options: ConvertOptions) -> Imported:
    """Return the rows that can be sent. Raises TraceError."""
    trace = read_trace(options.path)
    left_out: Counter[str] = Counter()
    return Imported(header=trace.header, rows=taken(options, trace.rows, left_out), left_out=left_out)
