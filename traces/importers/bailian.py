"""Bailian's traces: JSON lines with seconds, lengths, hashes of blocks of 16 tokens, and chats that go on from others.

A request names the one whose conversation it continues; prompts are whole, so equal hashes say what they repeat.
"""

from collections import Counter
from typing import Any

from traces.importers.agent_calls import BlockHashTree
from traces.importers.reading import OTHER_BLOCKS, Unread, at, block_hashes, expect, json_lines, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError

_BLOCK_TOKENS = 16
_KEYS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids")


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace; those of one conversation have its first chat as their session. Raises TraceError."""
    block_tokens = options.block_tokens or _BLOCK_TOKENS
    of_chat: dict[int, TraceRow] = {}
    rows: list[TraceRow] = []
    shared = BlockHashTree()
    unread = Unread()
    num_orphans = 0
    for place, entry in json_lines(options.path):
        unread.add(entry, _KEYS)
        chat = at(place, entry, "chat_id", "a whole number")
        if chat in of_chat:
            raise TraceError(f"{place} key chat_id: expected a chat that no line before has, got {chat}")
        before = _before(place, entry, of_chat)
        turn = _turn(place, entry, before)
        num_orphans += before is None and turn > 1
        input_tokens = at(place, entry, "input_length", "a whole number")
        hash_ids = block_hashes(place, entry, input_tokens, block_tokens, OTHER_BLOCKS)
        arrival_us = _arrival_us(place, entry, before)
        other, num_blocks = shared.add(len(rows), hash_ids)
        tokens = min(num_blocks * block_tokens, max(0, input_tokens - 1))
        of_chat[chat] = TraceRow(
            request_id=len(rows),
            tenant_id=expect(f"{place} key type", "text", entry.get("type") or ""),
            session_id=str(chat) if before is None else before.session_id,
            round_index=turn - 1,
            arrival_time_us=arrival_us,
            input_tokens=input_tokens,
            output_tokens=at(place, entry, "output_length", "a whole number"),
            parents="" if before is None else str(before.request_id),
            think_time_us=0 if before is None else arrival_us - before.arrival_time_us,
            context_of=str(other) if tokens else "",
            context_tokens=tokens,
        )
        rows.append(of_chat[chat])
    left_out = Counter({"parent_chat_id of requests whose parents are not in the file": num_orphans})
    first = sendable_rows(options, rows, left_out)
    notes = (
        "the type of a request stands in tenant_id",
        "the pause before a turn is the time since the turn before arrived: replies have no times in the file",
        *unread.note(),
    )
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


def _before(place: str, entry: dict[str, Any], of_chat: dict[int, TraceRow]) -> TraceRow | None:
    """The request whose conversation this one continues; -1 names none."""
    if entry.get("parent_chat_id") == -1:
        return None
    return of_chat.get(at(place, entry, "parent_chat_id", "a whole number"))


def _turn(place: str, entry: dict[str, Any], before: TraceRow | None) -> int:
    turn: int = at(place, entry, "turn", "a whole number")
    expected = max(1, turn) if before is None else before.round_index + 2
    if turn != expected:
        raise TraceError(f"{place} key turn: expected {expected}, as parent_chat_id says, got {turn}")
    return turn


def _arrival_us(place: str, entry: dict[str, Any], before: TraceRow | None) -> int:
    arrival_us: int = round(at(place, entry, "timestamp", "a time in seconds") * 1e6)
    if before is not None and arrival_us < before.arrival_time_us:
        raise TraceError(f"{place} key timestamp: expected none below that of its parent")
    return arrival_us
