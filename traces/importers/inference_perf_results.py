"""The requests of a report of inference-perf (`per_request_lifecycle_metrics.json`), as a recording."""

import re
from collections.abc import Mapping
from typing import Any

from traces.importers.reading import Unread, at, check_order, check_times, count_at, expect, json_value, seconds_us
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError

_STREAM = re.compile(r'"stream":\s*true')
_ENTRY_KEYS = ("start_time", "end_time", "scheduled_time", "info", "error")
_INFO_KEYS = ("input_tokens", "output_tokens", "output_token_times", "request_metrics", "response_metrics")
_RESPONSE_KEYS = ("output_tokens", "server_usage", "output_token_times", "chunk_times")


def convert(options: ConvertOptions) -> Imported:
    """The requests of a report, due when they were scheduled, or else sent. Raises TraceError.

    The times of the file count from some start. Figures stand in `info`, in later releases in parts of it.
    """
    source = str(options.path)
    entries = expect(source, "a list", json_value(options.path))
    if not entries:
        raise TraceError(f"{source}: expected requests, got none")
    unread = Unread()
    found = [_request(f"{source} request {number}", each, unread) for number, each in enumerate(entries)]
    return recording(options, found, unread.note())


def _request(place: str, given: Any, unread: Unread) -> tuple[TraceRow, list[int]]:
    entry = expect(place, "an object", given)
    sent_us, ended_us = seconds_us(place, entry, "start_time"), seconds_us(place, entry, "end_time")
    check_order(place, ("start_time", sent_us), ("end_time", ended_us))
    error = entry.get("error")
    info = _part(place, entry, "info", is_needed=not error)
    asked = _part(f"{place} key info", info, "request_metrics")
    replied = _part(f"{place} key info", info, "response_metrics")
    words = _part(f"{place} key info.request_metrics", asked, "text")
    usage = _part(f"{place} key info.response_metrics", replied, "server_usage")
    _note_unread(unread, entry, info, asked, replied)
    times = [] if error else _token_times(f"{place} key info", info, replied)
    if not times and not error and _is_stream(entry):
        raise TraceError(f"{place} key info: the key output_token_times is missing, found {', '.join(replied or info)}")
    input_tokens = count_at(f"{place} key info", {**words, **info}, "input_tokens", is_needed=not error)
    output_tokens = count_at(f"{place} key info", {**info, **replied}, "output_tokens", is_needed=not error)
    row = TraceRow(
        request_id=0,
        streaming=bool(times),
        input_tokens=input_tokens,
        output_tokens=count_at(place, usage, "completion_tokens") or output_tokens,
        server_input_tokens=count_at(place, usage, "prompt_tokens"),
        arrival_time_us=seconds_us(place, entry, "scheduled_time") if entry.get("scheduled_time") is not None else 0,
        send_time_us=sent_us,
        first_chunk_time_us=times[0] if times else 0 if error else ended_us,
        last_chunk_time_us=times[-1] if times else 0 if error else ended_us,
        num_chunks=len(times) or int(not error),
        status="error" if error else "ok",
        error_message=_words(error),
    )
    check_times(place, row, end_us=ended_us)
    return row, times


def _part(place: str, holder: Mapping[str, Any], key: str, *, is_needed: bool = False) -> dict[str, Any]:
    """An object inside another, an empty one where there is none. Raises TraceError for one that is needed."""
    if holder.get(key) is None and not is_needed:
        return {}
    found: dict[str, Any] = at(place, holder, key, "an object")
    return found


def _note_unread(unread: Unread, entry: Mapping[str, Any], *parts: Mapping[str, Any]) -> None:
    info, asked, replied = parts
    unread.add(entry, _ENTRY_KEYS)
    unread.add(info, _INFO_KEYS, "info ")
    unread.add(asked, ("text",), "request_metrics ")
    unread.add(replied, _RESPONSE_KEYS, "response_metrics ")


def _token_times(place: str, info: Mapping[str, Any], replied: Mapping[str, Any]) -> list[int]:
    """The times of the tokens of a stream, else of its chunks; none of a reply in one piece.

    In `response_metrics` a reply in one piece has no such key; without that part the key is always there.
    """
    if not replied:
        given = at(place, info, "output_token_times", "a list")
    else:
        given = next((replied[key] for key in ("output_token_times", "chunk_times") if replied.get(key)), [])
    stamps = expect(f"{place} key output_token_times", "a list", given)
    return [round(float(expect(f"{place} output_token_times", "a time in seconds", each)) * 1e6) for each in stamps]


def _is_stream(entry: Mapping[str, Any]) -> bool:
    """Whether other parts of an entry say that its reply was a stream with tokens."""
    computed = entry.get("computed_metrics")
    asked = entry.get("request")
    text = asked if isinstance(asked, str) else ""
    return (isinstance(computed, dict) and computed.get("time_to_first_token") is not None) or bool(
        _STREAM.search(text)
    )


def _words(error: Any) -> str:
    if isinstance(error, dict):
        return ": ".join(str(error[key]) for key in ("error_type", "error_msg") if error.get(key))
    return str(error or "")
