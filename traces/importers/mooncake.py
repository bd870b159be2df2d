"""Mooncake traces: JSON lines with milliseconds, lengths, and the hashes of the prompt's blocks of 512 tokens.

Equal hashes are equal starts of prompts: each request names the earlier one with which it has most blocks in common.
In the form of AIPerf requests may have a session, whose later ones wait for the reply before and `delay` milliseconds.
Their lengths and hashes are those of what a turn adds: AIPerf puts the conversation so far before it.
"""

from collections import Counter
from typing import Any

from blis_sim.options.option import MOST_TOKENS
from traces.importers.agent_calls import BlockHashTree
from traces.importers.reading import OTHER_BLOCKS, Unread, at, block_hashes, expect, json_lines, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError

_BLOCK_TOKENS = 512
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay")
_HOW = {
    "new": "input_length of a row with a session_id is what its turn adds, as AIPerf reads it (--session-prompts)",
    "whole": "input_length of a row with a session_id is its whole prompt (--session-prompts)",
}
_DOUBT = "rows of sessions begin with the blocks of the row before: are they whole prompts (--session-prompts whole)?"


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace, with the prefixes they share and the sessions they have. Raises TraceError."""
    reader = _Reader(options)
    for place, entry in json_lines(options.path):
        if "chat_id" in entry:
            raise TraceError(f"{place}: chat_id is a key of Bailian's traces, read them with: blis convert bailian")
        reader.add(place, entry)
    left_out: Counter[str] = Counter()
    first = sendable_rows(options, reader.rows, left_out)
    notes = (*reader.notes(), *reader.unread.note())
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


class _Reader:
    """The rows of the lines so far."""

    def __init__(self, options: ConvertOptions) -> None:
        self._adds_up = options.session_prompts == "new"
        self._block_tokens = options.block_tokens or _BLOCK_TOKENS
        self._shared = BlockHashTree()
        self._last_of: dict[str, TraceRow] = {}
        self._hashes_of: dict[str, list[int]] = {}
        self._num_repeated = 0
        self.rows: list[TraceRow] = []
        self.unread = Unread()

    def add(self, place: str, entry: dict[str, Any]) -> None:
        """Add the row of a line. Raises TraceError."""
        self.unread.add(entry, _KEYS)
        session_id = str(expect(f"{place} key session_id", "text", entry.get("session_id") or ""))
        before = self._last_of.get(session_id) if session_id else None
        arrival_us, pause_us = _times_us(place, entry, before)
        given_tokens = at(place, entry, "input_length", "a whole number")
        hash_ids = block_hashes(place, entry, given_tokens, self._block_tokens, OTHER_BLOCKS)
        input_tokens, context, context_tokens = self._prompt(place, given_tokens, hash_ids, before)
        row = TraceRow(
            request_id=len(self.rows),
            session_id=session_id,
            round_index=0 if before is None else before.round_index + 1,
            arrival_time_us=arrival_us,
            input_tokens=input_tokens,
            output_tokens=at(place, entry, "output_length", "a whole number"),
            parents="" if before is None else str(before.request_id),
            think_time_us=pause_us,
            context_of="" if context is None else str(context),
            context_tokens=context_tokens,
        )
        if before is not None:
            self._num_repeated += bool(hash_ids) and hash_ids[:1] == self._hashes_of[session_id][:1]
        self.rows.append(row)
        if session_id:
            self._last_of[session_id] = row
            self._hashes_of[session_id] = hash_ids

    def _prompt(
        self, place: str, given_tokens: int, hash_ids: list[int], before: TraceRow | None
    ) -> tuple[int, int | None, int]:
        """The tokens of the whole prompt, the request that it repeats from the start, and how many tokens of it."""
        if before is not None and self._adds_up:
            said = before.input_tokens + before.output_tokens
            if said + given_tokens > MOST_TOKENS:
                raise TraceError(f"{place}: expected sessions that add up to at most {MOST_TOKENS} tokens, got more")
            tokens = min(said, said + given_tokens - 1)
            return said + given_tokens, before.request_id if tokens else None, tokens
        other, num_blocks = self._shared.add(len(self.rows), hash_ids)
        # At least one token is the request's own.
        tokens = min(num_blocks * self._block_tokens, max(0, given_tokens - 1))
        return given_tokens, other if tokens else None, tokens

    def notes(self) -> tuple[str, ...]:
        """Say how the rows of sessions were read."""
        if not self._last_of:
            return ()
        doubt = (f"{self._num_repeated} {_DOUBT}",) if self._adds_up and self._num_repeated else ()
        return (_HOW["new" if self._adds_up else "whole"], *doubt)


def _times_us(place: str, entry: dict[str, Any], before: TraceRow | None) -> tuple[int, int]:
    """Return the arrival time, which a later request of a session may lack, and its pause after the reply before.

    Without `delay` the pause is the time since the request before arrived, and none without times.
    """
    delay = entry.get("delay")
    pause_us = 0 if delay is None else round(expect(f"{place} key delay", "a time in milliseconds", delay) * 1000)
    if before is None:
        return round(at(place, entry, "timestamp", "a number") * 1000), 0
    if entry.get("timestamp") is None:
        return before.arrival_time_us + before.output_tokens + pause_us, pause_us
    arrival_us: int = round(at(place, entry, "timestamp", "a number") * 1000)
    if arrival_us < before.arrival_time_us:
        raise TraceError(f"{place} key timestamp: expected none below that of the request before in its session")
    return arrival_us, arrival_us - before.arrival_time_us if delay is None else pause_us
