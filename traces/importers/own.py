"""A preset as a spec that can be changed, and a trace of our own to be written in another format."""

from collections import Counter
from dataclasses import replace

from blis_sim.options import OptionError
from traces.importers.reading import sendable_rows
from traces.importers.registry import ConvertOptions, Imported
from traces.trace_v2 import read_trace
from traces.workload.presets import PRESETS, rate_spec
from traces.workload.spec import Arrival


def convert_preset(options: ConvertOptions) -> Imported:
    """The spec of a preset with constant arrivals. Raises OptionError for an unknown name."""
    preset = PRESETS.get(options.name)
    if preset is None:
        raise OptionError(f"the preset must be one of {', '.join(PRESETS)}, got {options.name!r}")
    spec = rate_spec(
        preset,
        rate=options.rate or 1.0,
        num_requests=options.num_requests or 100,
        seed=0,
        arrival=Arrival(process="constant"),
        client_id=f"preset-{options.name}",
    )
    return Imported(spec=replace(spec, seed=0))


def convert_trace(options: ConvertOptions) -> Imported:
    """Return the rows that can be sent. Raises TraceError."""
    trace = read_trace(options.path)
    left_out: Counter[str] = Counter()
    return Imported(header=trace.header, rows=sendable_rows(options, trace.rows, left_out), left_out=left_out)
