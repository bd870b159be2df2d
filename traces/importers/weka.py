"""Agentic traces of Weka's KV-cache tester: a JSON object per session, with requests, helpers and block hashes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from traces.importers.agent_calls import Call, rows_of
from traces.importers.reading import (
    MAX_S,
    Unread,
    at,
    block_hashes,
    drawn_arrivals_us,
    expect,
    json_documents,
    json_files,
    sendable_rows,
)
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError

_CALLS = ("n", "s")


_TRACE_KEYS = ("id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "totals")
_CALL_KEYS = ("t", "type", "in", "out", "hash_ids", "api_time", "think_time")
_AGENT_KEYS = ("t", "type", "agent_id", "subagent_type", "requests", "models", "tool_tokens", "system_tokens", "status")
_TOLERANCE_S = 0.01


def convert(options: ConvertOptions) -> Imported:
    """The sessions of a file, or of all JSON files of a folder; several begin at --rate. Raises BlisError."""
    path = options.path
    documents = [found for each in json_files(path) for found in json_documents(each)]
    sessions = [(place, expect(place, "an object", entry)) for place, entry in documents]
    starts_us = [0] if len(sessions) == 1 else drawn_arrivals_us(options, len(sessions))
    rows: list[TraceRow] = []
    left_out: Counter[str] = Counter()
    unread = Unread()
    num_relative = 0
    for (place, entry), start_us in zip(sessions, starts_us, strict=True):
        unread.add(entry, _TRACE_KEYS)
        session_id = at(place, entry, "id", "text")
        block_tokens = at(place, entry, "block_size", "a whole number")
        if not block_tokens:
            raise TraceError(f"{place} key block_size: expected a whole number above 0, got 0")
        scope = entry.get("hash_id_scope", "local")
        if scope != "local":
            raise TraceError(f"{place} key hash_id_scope: expected local, hashes of its own session, got {scope!r}")
        reader = _Session(block_tokens, left_out, unread)
        calls = list(reader.calls(place, at(place, entry, "requests", "a list"), (session_id,), 0.0))
        rows += rows_of(calls, session_id, len(rows), start_us, block_tokens)
        num_relative += reader.num_relative
    first = sendable_rows(options, rows, left_out)
    how = (f"times of {num_relative} helpers count from the start of their helper",) if num_relative else ()
    notes = (*how, *unread.note())
    return Imported(header=workload_header(path.name), rows=first, left_out=left_out, notes=notes)


class _Session:
    """Reads the calls of a session, and counts what has no place."""

    def __init__(self, block_tokens: int, left_out: Counter[str], unread: Unread) -> None:
        self._block_tokens = block_tokens
        self._left_out = left_out
        self._unread = unread
        self.num_relative = 0

    def calls(self, place: str, entries: list[Any], path: tuple[str, ...], origin_s: float) -> Iterator[Call]:
        """The calls of a session, or of a helper in it; their times count from `origin_s`."""
        for number, each in enumerate(entries):
            inside = f"{place} request {number}"
            entry = expect(inside, "an object", each)
            kind = at(inside, entry, "type", "text")
            if kind == "subagent":
                yield from self._calls_of_helper(inside, entry, number, path, origin_s)
            elif kind in _CALLS:
                self._unread.add(entry, _CALL_KEYS)
                call = _call(inside, entry, path, origin_s, self._block_tokens, is_streaming=kind == "s")
                if call.input_tokens and call.output_tokens:
                    yield call
                else:
                    self._left_out["requests without prompt or output tokens"] += 1
            else:
                raise TraceError(f"{inside} key type: expected n, s or subagent, got {kind!r}")

    def _calls_of_helper(
        self, place: str, entry: dict[str, Any], number: int, path: tuple[str, ...], origin_s: float
    ) -> Iterator[Call]:
        """The calls of a helper: a first one before the helper starts shows that times count from that start."""
        self._unread.add(entry, _AGENT_KEYS, "subagent ")
        agent = f"{number}-{at(place, entry, 'agent_id', 'text')}"
        requests = at(place, entry, "requests", "a list")
        start_s = at(place, entry, "t", "a time in seconds")
        times_s = [each["t"] for each in requests if isinstance(each, dict) and isinstance(each.get("t"), int | float)]
        is_relative = bool(times_s) and min(times_s) < start_s - _TOLERANCE_S
        self.num_relative += is_relative
        yield from self.calls(place, requests, (*path, agent), origin_s + start_s if is_relative else origin_s)


def _call(
    place: str, entry: dict[str, Any], path: tuple[str, ...], origin_s: float, block_tokens: int, *, is_streaming: bool
) -> Call:
    start_us = round((origin_s + at(place, entry, "t", "a time in seconds")) * 1e6)
    took_us = round(at(place, entry, "api_time", "a time in seconds") * 1e6)
    input_tokens = at(place, entry, "in", "a whole number")
    return Call(
        start_us=min(start_us, MAX_S * 1_000_000),
        end_us=min(start_us + took_us, MAX_S * 1_000_000),
        path=path,
        input_tokens=input_tokens,
        output_tokens=at(place, entry, "out", "a whole number"),
        streaming=is_streaming,
        hash_ids=tuple(block_hashes(place, entry, input_tokens, block_tokens)),
    )
