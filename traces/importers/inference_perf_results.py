"""Requests of a report of inference-perf (`per_request_lifecycle_metrics.json`): a recording with token times."""

from collections.abc import Mapping
from typing import Any

from traces.errors import TraceError
from traces.importers.imported import Imported, recording
from traces.importers.json_fields import at, expect
from traces.importers.settings import ConvertOptions
from traces.rows import TraceRow
from traces.text_file import read_json


def convert(options: ConvertOptions) -> Imported:
    """The requests of a report, due when they were scheduled, or else sent. Raises TraceError.

    The times of the file count from some start.
    """
    source = str(options.path)
    entries = expect(source, "a list", read_json(options.path))
    if not entries:
        raise TraceError(f"{source}: expected requests, got none")
    return recording(options, [_request(f"{source} request {number}", each) for number, each in enumerate(entries)])


def _request(place: str, entry: Any) -> tuple[TraceRow, list[int]]:
    expect(place, "an object", entry)
    sent_us = _us(place, entry, "start_time")
    due_us = _us(place, entry, "scheduled_time") if entry.get("scheduled_time") is not None else 0
    ended_us = _us(place, entry, "end_time")
    info = at(place, entry, "info", "an object")
    error = entry.get("error")
    stamps = expect(f"{place} key output_token_times", "a list", info.get("output_token_times") or [])
    times = [round(float(expect(f"{place} output_token_times", "a time in seconds", each)) * 1e6) for each in stamps]
    times = [] if error else times
    row = TraceRow(
        request_id=0,
        streaming=bool(times),
        input_tokens=_count(place, info, "input_tokens"),
        output_tokens=_count(place, info, "output_tokens"),
        arrival_time_us=due_us,
        send_time_us=sent_us,
        first_chunk_time_us=times[0] if times else 0 if error else ended_us,
        last_chunk_time_us=times[-1] if times else 0 if error else ended_us,
        num_chunks=len(times) or int(not error),
        status="error" if error else "ok",
        error_message=_words(error),
    )
    return row, times


def _us(place: str, entry: Mapping[str, Any], key: str) -> int:
    return round(float(at(place, entry, key, "a time in seconds")) * 1e6)


def _count(place: str, info: Mapping[str, Any], key: str) -> int:
    return int(expect(f"{place} key {key}", "a whole number", info.get(key) or 0))


def _words(error: Any) -> str:
    if isinstance(error, dict):
        return ": ".join(str(error[key]) for key in ("error_type", "error_msg") if error.get(key))
    return str(error or "")
