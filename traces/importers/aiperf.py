"""Records of aiperf (`profile_export.jsonl`): a recording, with the times of each request and of its chunks."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from traces.errors import TraceError
from traces.importers.imported import Imported, recording
from traces.importers.json_fields import at, expect, json_lines
from traces.importers.settings import ConvertOptions
from traces.rows import TraceRow

_UNITS_US: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "sec": 1e6, "s": 1e6}


def convert(options: ConvertOptions) -> Imported:
    """The requests that were measured, due when their credit was issued. Raises TraceError."""
    found, num_warmup = [], 0
    for place, entry in json_lines(options.path):
        about = at(place, entry, "metadata", "an object")
        if about.get("benchmark_phase", "profiling") != "profiling":
            num_warmup += 1
        else:
            found.append(
                _request(place, about, expect(f"{place} key metrics", "an object", entry.get("metrics") or {}), entry)
            )
    if not found:
        raise TraceError(f"{options.path}: expected records of the phase profiling, got none")
    notes = ("rounds of a conversation are requests of their own",) if any(each[2] for each in found) else ()
    return recording(options, [each[:2] for each in found], notes, requests_of_the_warmup=num_warmup)


def _request(
    place: str, about: Mapping[str, Any], metrics: Mapping[str, Any], entry: Mapping[str, Any]
) -> tuple[TraceRow, list[int], bool]:
    """The row, the chunk times, and whether the request is a later round of a conversation."""
    sent_us, ended_us = _ns(place, about, "request_start_ns"), _ns(place, about, "request_end_ns")
    due_us = _ns(place, about, "credit_issued_ns") if about.get("credit_issued_ns") is not None else 0
    error = entry.get("error")
    ttft_us = _duration_us(place, metrics, "time_to_first_token")
    gaps_us = _durations_us(place, metrics, "inter_chunk_latency")
    status = "incomplete" if about.get("was_cancelled") else "ok" if error is None else "error"
    times: list[int] = []
    if ttft_us is not None and error is None:
        times = [sent_us + round(each) for each in accumulate(gaps_us, initial=ttft_us)]
    chunks = times or ([ended_us] if status == "ok" else [])
    num_output_tokens = _count(place, metrics, "usage_completion_tokens", "output_sequence_length")
    row = TraceRow(
        request_id=0,
        streaming=ttft_us is not None,
        input_tokens=_count(place, metrics, "input_sequence_length", "error_isl"),
        output_tokens=num_output_tokens,
        server_input_tokens=_count(place, metrics, "usage_prompt_tokens"),
        reason_ratio=_share(_count(place, metrics, "reasoning_token_count"), num_output_tokens),
        arrival_time_us=due_us,
        send_time_us=sent_us,
        first_chunk_time_us=chunks[0] if chunks else 0,
        last_chunk_time_us=chunks[-1] if chunks else 0,
        num_chunks=len(chunks),
        status=status,
        error_message=str(error.get("message", "")) if isinstance(error, dict) else str(error or ""),
        x_request_id=str(about.get("x_request_id") or ""),
    )
    return row, times, bool(about.get("turn_index"))


def _ns(place: str, about: Mapping[str, Any], key: str) -> int:
    """A Unix time in nanoseconds, as microseconds."""
    return int(at(f"{place} key metadata", about, key, "a time in nanoseconds")) // 1000


def _metric(place: str, metrics: Mapping[str, Any], name: str) -> tuple[Any, str] | None:
    found = metrics.get(name)
    if found is None:
        return None
    expect(f"{place} metric {name}", "an object", found)
    return found.get("value"), str(found.get("unit", ""))


def _duration_us(place: str, metrics: Mapping[str, Any], name: str) -> float | None:
    found = _metric(place, metrics, name)
    return None if found is None else _in_us(f"{place} metric {name}", *found)


def _durations_us(place: str, metrics: Mapping[str, Any], name: str) -> list[float]:
    found = _metric(place, metrics, name)
    if found is None:
        return []
    values = expect(f"{place} metric {name}", "a list", found[0])
    return [_in_us(f"{place} metric {name}", each, found[1]) for each in values]


def _in_us(place: str, value: Any, unit: str) -> float:
    if unit not in _UNITS_US:
        raise TraceError(f"{place}: expected a unit out of {', '.join(_UNITS_US)}, got {unit!r}")
    return float(expect(place, "a number", value)) * _UNITS_US[unit]


def _count(place: str, metrics: Mapping[str, Any], *names: str) -> int:
    for name in names:
        found = _metric(place, metrics, name)
        if found is not None:
            return round(float(expect(f"{place} metric {name}", "a number", found[0])))
    return 0


def _share(part: int, whole: int) -> float:
    return min(1.0, part / whole) if whole else 0.0
