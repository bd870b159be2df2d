"""Mooncake traces: JSON lines with milliseconds, lengths, and the hashes of the prompt's blocks of 512 tokens.

Equal hashes are equal starts of prompts: each request names the earlier one with which it has most blocks in common.
In the form of aiperf requests may have a session, whose later ones wait for the reply before and `delay` milliseconds.
"""

from collections import Counter
from typing import Any

from traces.importers.agent_calls import BlockHashTree
from traces.importers.reading import at, expect, json_lines, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError

_BLOCK_TOKENS = 512


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace, with the prefixes they share and the sessions they have. Raises TraceError."""
    rows: list[TraceRow] = []
    last_of: dict[str, TraceRow] = {}
    shared = BlockHashTree()
    for place, entry in json_lines(options.path):
        ids = at(place, entry, "hash_ids", "a list") if entry.get("hash_ids") is not None else []
        hash_ids = [expect(f"{place} key hash_ids", "a whole number", each) for each in ids]
        session_id = _session(place, entry)
        before = last_of.get(session_id) if session_id else None
        pause_us = round(expect(f"{place} key delay", "a time in milliseconds", entry.get("delay") or 0) * 1000)
        arrival_us = _arrival_us(place, entry, before, pause_us)
        input_tokens = at(place, entry, "input_length", "a whole number")
        other, num_blocks = shared.add(len(rows), hash_ids)
        # At least one token is the request's own.
        tokens = min(num_blocks * _BLOCK_TOKENS, max(0, input_tokens - 1))
        row = TraceRow(
            request_id=len(rows),
            session_id=session_id,
            round_index=0 if before is None else before.round_index + 1,
            arrival_time_us=arrival_us,
            input_tokens=input_tokens,
            output_tokens=at(place, entry, "output_length", "a whole number"),
            parents="" if before is None else str(before.request_id),
            think_time_us=0 if before is None else pause_us,
            context_of=str(other) if tokens else "",
            context_tokens=tokens,
        )
        rows.append(row)
        last_of[session_id] = row
    left_out: Counter[str] = Counter()
    return Imported(
        header=workload_header(options.path.name), rows=sendable_rows(options, rows, left_out), left_out=left_out
    )


def _session(place: str, entry: dict[str, Any]) -> str:
    return str(expect(f"{place} key session_id", "text", entry.get("session_id") or ""))


def _arrival_us(place: str, entry: dict[str, Any], before: TraceRow | None, pause_us: int) -> int:
    """Return the arrival time; a later request of a session may lack it."""
    if before is None or entry.get("timestamp") is not None:
        arrival_us: int = round(at(place, entry, "timestamp", "a number") * 1000)
        if before is not None and arrival_us < before.arrival_time_us:
            raise TraceError(f"{place} key timestamp: expected none below that of the request before in its session")
        return arrival_us
    return before.arrival_time_us + before.output_tokens + pause_us
