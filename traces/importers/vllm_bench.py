"""Results of `vllm bench serve --save-result --save-detailed`: a recording, with the times of each request."""

from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from traces.header import TraceHeader
from traces.importers.reading import expect
from traces.importers.registry import ConvertOptions, Imported
from traces.rows import TraceRow
from traces.text_file import TraceError, read_json

_LISTS = ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors")


def convert(options: ConvertOptions) -> Imported:
    """The requests of a run with all they experienced; it was due when it was sent. Raises TraceError.

    The times of the file count from some start; `date` is when the file was written.
    """
    source = str(options.path)
    results = expect(source, "an object", read_json(options.path))
    missing = [name for name in _LISTS if name not in results]
    if missing:
        raise TraceError(f"{source}: the key {missing[0]} is missing, save results with --save-detailed")
    lists = [expect(f"{source} key {name}", "a list", results[name]) for name in _LISTS]
    if len(set(map(len, lists))) != 1:
        lengths = ", ".join(f"{name} {len(each)}" for name, each in zip(_LISTS, lists, strict=True))
        raise TraceError(f"{source}: expected lists of one length, got {lengths}")
    starts = [
        expect(f"{source} request {place} start_time", "a time in seconds", at) for place, at in enumerate(lists[0])
    ]
    order = sorted(range(len(starts)), key=lambda place: float(starts[place]))
    first_s = starts[order[0]] if order else 0.0
    origin_us = _began_us(results, source)
    rows, chunks = [], {}
    for number, place in enumerate(order[: options.num_requests]):
        entry = dict(zip(_LISTS, (each[place] for each in lists), strict=True))
        sent_us = origin_us + round((entry["start_times"] - first_s) * 1e6)
        row, times = _row(f"{source} request {place}", number, entry, sent_us, sent_us - origin_us)
        rows.append(row)
        if times:
            chunks[number] = times
    return Imported(
        header=TraceHeader(
            time_unit="us",
            mode="real",
            created_at=datetime.fromtimestamp(origin_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            server={"type": "vllm", "model": str(results.get("model_id", ""))},
        ),
        rows=rows,
        chunks=chunks,
        left_out={"requests beyond --num-requests": len(order) - len(rows)},
    )


def _row(place: str, number: int, entry: dict[str, Any], sent_us: int, due_us: int) -> tuple[TraceRow, list[int]]:
    """The row of a request and its chunk times."""
    error = str(entry["errors"] or "")
    ttft_s = expect(f"{place} ttft", "a time in seconds", entry["ttfts"])
    gaps_s = [
        expect(f"{place} itl", "a time in seconds", each) for each in expect(f"{place} itls", "a list", entry["itls"])
    ]
    answered = not error and ttft_s > 0
    times = [sent_us + round(at * 1e6) for at in accumulate(gaps_s, initial=ttft_s)] if answered else []
    row = TraceRow(
        request_id=number,
        streaming=True,
        input_tokens=expect(f"{place} input_len", "a whole number", entry["input_lens"]),
        output_tokens=expect(f"{place} output_len", "a whole number", entry["output_lens"]),
        arrival_time_us=due_us,
        send_time_us=sent_us,
        first_chunk_time_us=times[0] if times else 0,
        last_chunk_time_us=times[-1] if times else 0,
        num_chunks=len(times),
        status="ok" if answered else "error",
        error_message=error,
    )
    return row, times


def _began_us(results: dict[str, Any], source: str) -> int:
    """Unix time of the start: the file is written at the end."""
    try:
        written = datetime.strptime(str(results.get("date")), "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise TraceError(f"{source} key date: expected a time like 20260131-235959") from None
    duration_s = expect(f"{source} key duration", "a time in seconds", results.get("duration", 0))
    return round((written.timestamp() - float(duration_s)) * 1e6)
