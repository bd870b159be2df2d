"""Mooncake traces: JSON lines with milliseconds, lengths, and the hashes of the prompt's blocks of 512 tokens.

Equal hashes are equal starts of prompts: each request names the earlier one with which it has most blocks in common.
In the form of AIPerf requests may have a session, whose later ones wait for the reply before and `delay` milliseconds.
Their lengths and hashes are those of what a turn adds: AIPerf puts the conversation so far before it. A row with
`messages` has its whole prompt, one with `text_input` the text of what it adds.
"""

from collections import Counter
from typing import Any

from blis_sim.options.option import MOST_TOKENS
from traces.importers.agent_calls import BlockHashTree
from traces.importers.messages import words_of
from traces.importers.reading import (
    OTHER_BLOCKS,
    Unread,
    at,
    block_hashes,
    expect,
    json_lines,
    token_counter,
    workload,
)
from traces.importers.registry import ConvertOptions, Imported
from traces.rows import TraceRow
from traces.text_file import TraceError

_BLOCK_TOKENS = 512
_KEYS = ("timestamp", "input_length", "text_input", "messages", "output_length", "hash_ids", "session_id", "delay")
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
    return workload(options, reader.rows, reader.left_out, reader.notes())


class _Reader:
    """The rows of the lines so far."""

    def __init__(self, options: ConvertOptions) -> None:
        self._adds_up = options.session_prompts == "new"
        self._block_tokens = options.block_tokens or _BLOCK_TOKENS
        self._shared = BlockHashTree()
        self._last_of: dict[str, TraceRow] = {}
        self._hashes_of: dict[str, list[int]] = {}
        self._count_tokens, self._how = token_counter(options)
        self._num_repeated = self._num_counted = self._num_without_hashes = 0
        self.rows: list[TraceRow] = []
        self.left_out: Counter[str] = Counter()
        self.unread = Unread()

    def add(self, place: str, entry: dict[str, Any]) -> None:
        """Add the row of a line. Raises TraceError."""
        self.unread.add(entry, _KEYS)
        session_id = str(expect(f"{place} key session_id", "text", entry.get("session_id") or ""))
        before = self._last_of.get(session_id) if session_id else None
        arrival_us, pause_us = _times_us(place, entry, before)
        given_tokens = self._given_tokens(place, entry)
        hash_ids: list[int] = []
        if entry.get("hash_ids") is not None:
            hash_ids = block_hashes(place, entry, given_tokens, self._block_tokens, OTHER_BLOCKS)
        if before is not None and self._adds_up:
            # The tokens of a later prompt of a session, the request before it, and how many tokens of that it repeats.
            is_whole = bool(entry.get("messages"))
            said = before.input_tokens + before.output_tokens
            tokens = given_tokens if is_whole else said + given_tokens
            if tokens > MOST_TOKENS:
                raise TraceError(f"{place}: expected sessions that add up to at most {MOST_TOKENS} tokens, got more")
            repeated = min(said, max(0, tokens - 1))
            prompt = tokens, before.request_id if repeated else None, repeated
        else:
            prompt = given_tokens, *self._shared.repeated(len(self.rows), hash_ids, given_tokens, self._block_tokens)
            self._num_without_hashes += entry.get("hash_ids") is None
        input_tokens, context, context_tokens = prompt
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

    def _given_tokens(self, place: str, entry: dict[str, Any]) -> int:
        """The tokens that a row states, or those of its text or messages."""
        if entry.get("messages"):
            words = [words_of(place, each, self.left_out) for each in at(place, entry, "messages", "a list")]
        elif entry.get("text_input"):
            words = [at(place, entry, "text_input", "text")]
        else:
            return int(at(place, entry, "input_length", "a whole number"))
        self._num_counted += 1
        return sum(map(self._count_tokens, words))

    def notes(self) -> tuple[str, ...]:
        """Say how the rows were read."""
        found = [_HOW["new" if self._adds_up else "whole"]] if self._last_of else []
        if self._adds_up and self._num_repeated:
            found.append(f"{self._num_repeated} {_DOUBT}")
        if self._num_counted:
            found.append(f"prompts of {self._num_counted} rows are texts: {self._how}")
        if self._num_without_hashes:
            found.append(
                f"{self._num_without_hashes} rows have no hash_ids: their prompts are taken as sharing nothing"
            )
        return (*found, *self.unread.note())


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
