"""Results of guidellm (its JSON output): a recording, with the times of each request of each benchmark."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from traces.importers.reading import Unread, at, check_times, count_at, expect, first_at, json_value
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError

_STATUS = {"successful": "ok", "incomplete": "incomplete", "errored": "error"}
# Names of earlier versions stand behind those of today.
_TIMES: Mapping[str, tuple[str, ...]] = {
    "sent": ("request_start", "request_start_time", "start_time"),
    "first": ("first_token_iteration", "first_iteration", "first_token_time"),
    "last": ("last_token_iteration", "last_iteration", "last_token_time"),
    "due": ("targeted_start",),
    "ended": ("request_end", "request_end_time", "end_time"),
}
_KNOWN = (
    *(key for keys in _TIMES.values() for key in keys),
    *("request_id", "prompt_tokens", "output_tokens", "token_iterations", "info", "timings", "error"),
    *("conversation_id", "turn_index", "input_metrics", "output_metrics"),
)
_MODALITIES = ("text_tokens", "image_tokens", "audio_tokens", "video_tokens")


def convert(options: ConvertOptions) -> Imported:
    """The requests of all benchmarks, each a client, at the times at which they were due. Raises TraceError."""
    source = str(options.path)
    results = expect(source, "an object", json_value(options.path))
    left_out: Counter[str] = Counter()
    unread = Unread()
    found: list[TraceRow] = []
    for number, benchmark in enumerate(at(source, results, "benchmarks", "a list")):
        place = f"{source} benchmark {number}"
        expect(place, "an object", benchmark)
        entries = list(_entries(place, benchmark))
        left_out["requests that the report counts and does not list"] += max(0, _total(benchmark) - len(entries))
        for status, inside, entry in entries:
            row = _row(inside, entry, status, f"benchmark-{number}", unread)
            if row is None:
                left_out["requests that were never sent"] += 1
            else:
                found.append(row)
    if not found:
        raise TraceError(f"{source}: expected requests under benchmarks, got none{_cause(left_out)}")
    notes = ("token times are not in the file", *unread.note())
    return recording(options, [(row, ()) for row in found], notes, left_out)


def _cause(left_out: Mapping[str, int]) -> str:
    """Why a report has no request, as far as it says so."""
    if left_out["requests that were never sent"]:
        return " that was sent"
    counted = left_out["requests that the report counts and does not list"]
    return f": the report counts {counted} and was saved without them" if counted else ""


def _total(benchmark: Mapping[str, Any]) -> int:
    """How many requests a benchmark says that it had; 0 where it does not."""
    for holder in (benchmark.get("metrics"), benchmark):
        totals = holder.get("request_totals") if isinstance(holder, dict) else None
        total = totals.get("total") if isinstance(totals, dict) else None
        if isinstance(total, int):
            return total
    return 0


def _entries(place: str, benchmark: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The requests that a benchmark lists, none where the key is there and empty."""
    requests = {} if benchmark.get("requests", ...) is None else at(place, benchmark, "requests", "an object")
    if requests and requests.get("successful", ...) is not None:
        at(f"{place} key requests", requests, "successful", "a list")
    for name, status in _STATUS.items():
        for number, entry in enumerate(expect(f"{place} {name}", "a list", requests.get(name) or [])):
            inside = f"{place} {name} request {number}"
            yield status, inside, expect(inside, "an object", entry)


def _row(place: str, entry: dict[str, Any], status: str, client: str, unread: Unread) -> TraceRow | None:
    info = expect(f"{place} key info", "an object", entry.get("info") or {})
    known = {**entry, **expect(f"{place} key timings", "an object", info.get("timings") or {})}
    times = {name: _time_us(place, known, name) for name in _TIMES}
    is_answered = status == "ok"
    if not times["sent"] and not is_answered:
        return None
    unread.add(entry, _KNOWN)
    unread.add(info, _KNOWN, "info ")
    times["sent"] = times["sent"] or _time_us(place, known, "sent", is_needed=True)
    is_stream = times["last"] or known.get("time_to_first_token_ms") or count_at(place, known, "token_iterations") > 1
    if is_answered and is_stream and not times["first"]:
        _time_us(place, known, "first", is_needed=True)
    ended_us = times["last"] or (
        times["ended"] or _time_us(place, known, "ended", is_needed=True) if is_answered else 0
    )
    row = TraceRow(
        request_id=0,
        client_id=client,
        session_id=str(info.get("conversation_id") or ""),
        round_index=count_at(place, info, "turn_index"),
        streaming=bool(times["first"]),
        input_tokens=_tokens(place, entry, "prompt_tokens", "input_metrics", is_needed=is_answered),
        output_tokens=_tokens(place, entry, "output_tokens", "output_metrics", is_needed=is_answered),
        arrival_time_us=times["due"] or times["sent"],
        send_time_us=times["sent"],
        first_chunk_time_us=times["first"] or (ended_us if is_answered else 0),
        last_chunk_time_us=ended_us,
        num_chunks=count_at(place, known, "token_iterations"),
        status=status,
        error_message=str(info.get("error") or entry.get("error") or ""),
        x_request_id=str(entry.get("request_id") or ""),
    )
    check_times(place, row, end_us=times["ended"])
    known_tokens: dict[str, Any] = {"server_input_tokens": row.input_tokens, **_modalities(place, entry)}
    return replace(row, **known_tokens)


def _tokens(place: str, entry: Mapping[str, Any], key: str, part: str, *, is_needed: bool) -> int:
    """A count of tokens, which also stands in a part of its own as a total."""
    given = expect(f"{place} key {part}", "an object", entry.get(part) or {})
    known = entry if entry.get(key) is not None or given.get("total_tokens") is None else {key: given["total_tokens"]}
    return count_at(place, known, key, is_needed=is_needed)


def _modalities(place: str, entry: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of each kind of input, where there is more than text."""
    given = expect(f"{place} key input_metrics", "an object", entry.get("input_metrics") or {})
    found = {name: count_at(f"{place} key input_metrics", given, name) for name in _MODALITIES}
    return found if any(found[name] for name in _MODALITIES[1:]) else {}


def _time_us(place: str, known: Mapping[str, Any], name: str, *, is_needed: bool = False) -> int:
    """An instant under any of its names, 0 where there is none. Raises TraceError for one that is needed."""
    if not is_needed and all(known.get(key) is None for key in _TIMES[name]):
        return 0
    return round(float(first_at(place, known, _TIMES[name], "a time in seconds")) * 1e6)
