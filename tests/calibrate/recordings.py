"""Small recordings and results, made up for one test each."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces import ResultRow, Trace, TraceHeader, TraceRow


def row(request_id: int, *, send_us: int = 1000, ttft_us: int = 50, e2e_us: int = 150, **fields: Any) -> TraceRow:
    """A row of a request that was answered, with the given latencies."""
    known: dict[str, Any] = {"input_tokens": 10, "output_tokens": 5, "arrival_time_us": send_us, "status": "ok"}
    known |= {"first_chunk_time_us": send_us + ttft_us, "last_chunk_time_us": send_us + e2e_us}
    return TraceRow(**{"request_id": request_id, "send_time_us": send_us, **known, **fields})


def result(request_id: int, *, ttft_us: float = 60, e2e_us: float = 160, **fields: Any) -> ResultRow:
    """A result of the same lengths as `row`."""
    known: dict[str, Any] = {"input_tokens": 10, "output_tokens": 5}
    return ResultRow(**{"request_id": request_id, "ttft_us": ttft_us, "e2e_us": e2e_us, **known, **fields})


def trace(rows: Iterable[TraceRow], **header: Any) -> Trace:
    """A trace of these rows, as if read from `t.yaml` and `t.csv`."""
    return Trace(TraceHeader(mode="real", **header), list(rows), Path("t.yaml"), Path("t.csv"))
