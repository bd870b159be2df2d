"""Results of guidellm (its JSON output): a recording, with the times of each request of each benchmark."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from traces.header import TraceHeader
from traces.importers.reading import at, expect
from traces.importers.registry import ConvertOptions, Imported, in_order
from traces.rows import TraceRow
from traces.text_file import TraceError, read_json

_STATUS = {"successful": "ok", "incomplete": "incomplete", "errored": "error"}
# Names of earlier versions stand behind those of today.
_TIMES: Mapping[str, tuple[str, ...]] = {
    "sent": ("request_start", "request_start_time", "start_time"),
    "first": ("first_token_iteration", "first_iteration", "first_token_time"),
    "last": ("last_token_iteration", "last_iteration", "last_token_time"),
    "due": ("targeted_start",),
}


def convert(options: ConvertOptions) -> Imported:
    """The requests of all benchmarks, each a client, at the times at which they were due. Raises TraceError."""
    source = str(options.path)
    results = expect(source, "an object", read_json(options.path))
    left_out = {"requests that were never sent": 0, "requests beyond --num-requests": 0}
    found: list[TraceRow] = []
    for number, benchmark in enumerate(at(source, results, "benchmarks", "a list")):
        place = f"{source} benchmark {number}"
        expect(place, "an object", benchmark)
        for status, inside, entry in _entries(place, at(place, benchmark, "requests", "an object")):
            row = _row(inside, entry, status, f"benchmark-{number}")
            if row is None:
                left_out["requests that were never sent"] += 1
            else:
                found.append(row)
    if not found:
        raise TraceError(f"{source}: expected requests under benchmarks, got none that was sent")
    rows = in_order(found)
    kept = rows[: options.num_requests]
    left_out["requests beyond --num-requests"] = len(rows) - len(kept)
    header = TraceHeader(time_unit="us", mode="real", workload_spec=options.path.name)
    return Imported(header=header, rows=kept, left_out=left_out, notes=("token times are not in the file",))


def _entries(place: str, requests: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, status in _STATUS.items():
        for number, entry in enumerate(expect(f"{place} {name}", "a list", requests.get(name) or [])):
            inside = f"{place} {name} request {number}"
            yield status, inside, expect(inside, "an object", entry)


def _row(place: str, entry: dict[str, Any], status: str, client: str) -> TraceRow | None:
    info = expect(f"{place} key info", "an object", entry.get("info") or {})
    known = {**entry, **expect(f"{place} key timings", "an object", info.get("timings") or {})}
    times = {name: _time_us(place, known, keys) for name, keys in _TIMES.items()}
    if not times["sent"]:
        return None
    row = TraceRow(
        request_id=0,
        client_id=client,
        streaming=bool(times["first"]),
        input_tokens=_count(place, entry, "prompt_tokens"),
        output_tokens=_count(place, entry, "output_tokens"),
        arrival_time_us=times["due"] or times["sent"],
        send_time_us=times["sent"],
        first_chunk_time_us=times["first"],
        last_chunk_time_us=times["last"],
        num_chunks=_count(place, known, "token_iterations"),
        status=status,
        error_message=str(info.get("error") or entry.get("error") or ""),
        x_request_id=str(entry.get("request_id") or ""),
    )
    return replace(row, server_input_tokens=row.input_tokens)


def _time_us(place: str, known: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        if known.get(key) is not None:
            return round(float(expect(f"{place} key {key}", "a time in seconds", known[key])) * 1e6)
    return 0


def _count(place: str, holder: Mapping[str, Any], key: str) -> int:
    value = holder.get(key)
    return 0 if value is None else int(expect(f"{place} key {key}", "a whole number", value))
