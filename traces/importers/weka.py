"""Agentic traces of Weka's KV-cache tester: a JSON object per session, with requests, helpers and block hashes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from traces.importers.agent_calls import Call, rows_of
from traces.importers.reading import MAX_S, at, drawn_arrivals_us, expect, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError, read_json

_CALLS = ("n", "s")


def convert(options: ConvertOptions) -> Imported:
    """The sessions of a file, or of all .json files of a folder; several begin at --rate. Raises BlisError."""
    paths = sorted(options.path.glob("*.json")) if options.path.is_dir() else [options.path]
    if not paths:
        raise TraceError(f"{options.path}: expected .json files in this folder, got none")
    sessions = [(path, expect(str(path), "an object", read_json(path))) for path in paths]
    starts_us = [0] if len(sessions) == 1 else drawn_arrivals_us(options, len(sessions))
    rows: list[TraceRow] = []
    left_out: Counter[str] = Counter()
    for (path, entry), start_us in zip(sessions, starts_us, strict=True):
        session_id = at(str(path), entry, "id", "text")
        block_tokens = at(str(path), entry, "block_size", "a whole number")
        if not block_tokens:
            raise TraceError(f"{path} key block_size: expected a whole number above 0, got 0")
        calls = list(_calls(str(path), at(str(path), entry, "requests", "a list"), (session_id,), left_out))
        rows += rows_of(calls, session_id, len(rows), start_us, block_tokens)
    first = sendable_rows(options, rows, left_out)
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out)


def _calls(place: str, entries: list[Any], path: tuple[str, ...], left_out: Counter[str]) -> Iterator[Call]:
    for number, each in enumerate(entries):
        inside = f"{place} request {number}"
        entry = expect(inside, "an object", each)
        kind = at(inside, entry, "type", "text")
        if kind == "subagent":
            agent = f"{number}-{at(inside, entry, 'agent_id', 'text')}"
            yield from _calls(inside, at(inside, entry, "requests", "a list"), (*path, agent), left_out)
        elif kind in _CALLS:
            call = _call(inside, entry, path, is_streaming=kind == "s")
            if call.input_tokens and call.output_tokens:
                yield call
            else:
                left_out["requests without prompt or output tokens"] += 1
        else:
            raise TraceError(f"{inside} key type: expected n, s or subagent, got {kind!r}")


def _call(place: str, entry: dict[str, Any], path: tuple[str, ...], *, is_streaming: bool) -> Call:
    start_us = round(at(place, entry, "t", "a time in seconds") * 1e6)
    took_s = entry.get("api_time")
    took_us = 0 if took_s is None else round(expect(f"{place} key api_time", "a time in seconds", took_s) * 1e6)
    ids = expect(f"{place} key hash_ids", "a list", entry.get("hash_ids") or [])
    return Call(
        start_us=start_us,
        end_us=min(start_us + took_us, MAX_S * 1_000_000),
        path=path,
        input_tokens=at(place, entry, "in", "a whole number"),
        output_tokens=at(place, entry, "out", "a whole number"),
        streaming=is_streaming,
        hash_ids=tuple(expect(f"{place} key hash_ids", "a whole number", each) for each in ids),
    )
