"""The tables that --operators names, for the arithmetic of whole batches in seconds."""

from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.engine.latency.operators.tables import OperatorTables, read_lookup_tables

SOURCES = {"vidur-tables": read_lookup_tables}
"""By what stands before the colon."""


def operator_tables(options: Any) -> OperatorTables:
    """Return the tables. Raises BlisError."""
    allowed = ", ".join(f"{name}:PREFIX" for name in SOURCES)
    if options.operators is None:
        raise BenchError(f"--operators must be given: one of {allowed}")
    name, _, place = options.operators.partition(":")
    if name not in SOURCES or not place:
        raise BenchError(f"--operators must be one of {allowed}, got {options.operators!r}")
    return SOURCES[name](place)
