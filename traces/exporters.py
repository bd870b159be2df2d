"""Traces written as files of other programs, by the formats of `blis convert --to`."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError
from blis_sim.options.registry import Registry
from traces.graph import ids_in, repeated_places
from traces.rows import TRACE_COLUMNS, TraceRow
from traces.text_file import writing
from traces.trace_v2 import TraceHeader

# The formats that `blis convert --to` writes. Adding one is adding its row and its file.


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """The name of the function of this module that writes a trace."""

    function: str
    help: str


EXPORTERS: Registry[Any] = Registry[Any]("blis.formats") | {
    "azure": ExportFormat("azure", "CSV of Azure's LLM inference traces"),
    "vidur": ExportFormat("vidur", "CSV of Vidur"),
    "mooncake": ExportFormat("mooncake", "JSON lines of Mooncake"),
}


def exporter_of(name: str) -> "Callable[[ToExport], Exported]":
    """Return the function of a format; that of another package is the attribute `export` of what it names.

    Raises KeyError for a name that is not known, OptionError for a format that cannot be loaded or only reads.
    """
    row = EXPORTERS[name]
    row = globals()[row.function] if isinstance(row, ExportFormat) else getattr(row, "export", None)
    if not callable(row):
        raise OptionError(f"--to {name}: the format has no function export(to_export) to write with")
    exporter: Callable[[ToExport], Exported] = row
    return exporter


# Traces written as files of other programs: CSV tables of Azure and Vidur, Mooncake's JSON lines.
#
# Prompts that begin alike, because they share a prefix group or repeat an earlier prompt and its reply, have equal
# hashes in Mooncake's form for the blocks that they share as a whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class ToExport:
    """A trace, and the file to write it to."""

    header: TraceHeader
    rows: Sequence[TraceRow]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Things that were not written: rows by reason, and notes on columns that have no place in the format."""

    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def prompt_tokens(row: TraceRow) -> int:
    """Return the tokens of the whole prompt, as the server counted them where it did."""
    return row.server_input_tokens or row.prefix_length + row.input_tokens


_WRITTEN = ("request_id", "arrival_time_us", "input_tokens", "prefix_length", "output_tokens", "server_input_tokens")


_USUAL = {"streaming": True}
"""Values that the programs which read these formats take for granted."""


def unsupported_columns_note(rows: Sequence[TraceRow], kept: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a note about the columns with values in some row that a format has no place for, beside those `kept`."""
    found = [
        column.name
        for column in TRACE_COLUMNS
        if column.name not in (*_WRITTEN, *kept)
        and any(getattr(row, column.name) not in (column.default, _USUAL.get(column.name)) for row in rows)
    ]
    return (f"there is no place for {', '.join(found)}",) if found else ()


_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)


def azure(given: ToExport) -> Exported:
    """Write Azure's columns; arrivals are counted from the first midnight of 2000, with microseconds."""
    lines = (
        (
            (_FIRST_DAY + timedelta(microseconds=row.arrival_time_us)).strftime("%Y-%m-%d %H:%M:%S.%f"),
            prompt_tokens(row),
            row.output_tokens,
        )
        for row in given.rows
    )
    return _written(given, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), lines)


def vidur(given: ToExport) -> Exported:
    """Write Vidur's columns; arrivals are seconds."""
    lines = ((f"{row.arrival_time_us / 1e6:.6f}", prompt_tokens(row), row.output_tokens) for row in given.rows)
    return _written(given, ("arrived_at", "num_prefill_tokens", "num_decode_tokens"), lines)


def _written(given: ToExport, titles: Sequence[str], lines: Iterable[Sequence[object]]) -> Exported:
    with writing(given.path) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(titles)
        table.writerows(lines)
    return Exported(notes=unsupported_columns_note(given.rows))


_BLOCK_TOKENS = 512
_KEPT = ("session_id", "round_index", "prefix_group", "context_tokens", "context_of", "think_time_us")


def mooncake(given: ToExport) -> Exported:
    """Write a line for each request, with sessions and pauses in AIPerf's form.

    AIPerf puts the conversation so far before each later turn of a session: these lines have what a turn adds.
    """
    rows = given.rows
    before, is_split = _turns_before(rows)
    fresh = count()
    with writing(given.path) as file:
        for place, (row, hash_ids) in enumerate(zip(rows, _hash_ids(rows, fresh), strict=True)):
            num_tokens, is_turn = prompt_tokens(row), row.session_id and row.session_id not in is_split
            if is_turn and place in before:
                num_tokens -= _said(rows[before[place]])
                hash_ids = [next(fresh) for _ in range(-(-num_tokens // _BLOCK_TOKENS))]
            line: dict[str, float | list[int] | str] = {
                "timestamp": _plain(row.arrival_time_us / 1000),
                "input_length": num_tokens,
                "output_length": row.output_tokens,
                "hash_ids": hash_ids,
            }
            if is_turn:
                line["session_id"] = row.session_id
            if is_turn and place in before:
                line["delay"] = _plain(row.think_time_us / 1000)
            file.write(json.dumps(line) + "\n")
    reason = "sessions whose prompts do not go on from the reply before: their requests are written without a session"
    loses_parents = any(
        row.parents and (place not in before or row.session_id in is_split) for place, row in enumerate(rows)
    )
    kept = _KEPT if loses_parents else (*_KEPT, "parents")
    return Exported(left_out={reason: len(is_split)}, notes=unsupported_columns_note(rows, kept))


def _said(row: TraceRow) -> int:
    return prompt_tokens(row) + row.output_tokens


def _turns_before(rows: Sequence[TraceRow]) -> tuple[dict[int, int], set[str]]:
    """The place of the turn before each later turn of a session, and the sessions that are not one conversation.

    In a conversation each prompt is all that was said before, and more.
    """
    repeated = repeated_places(rows)
    turns: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if row.session_id:
            turns.setdefault(row.session_id, []).append(place)
    before: dict[int, int] = {}
    is_split = set()
    for session_id, places in turns.items():
        for earlier, later in pairwise(sorted(places, key=lambda place: rows[place].round_index)):
            before[later] = earlier
            if repeated.get(later) != earlier or not _goes_on(rows[earlier], rows[later]):
                is_split.add(session_id)
    return before, is_split


def _goes_on(before: TraceRow, row: TraceRow) -> bool:
    """Whether a turn waits for the one before alone, and repeats all of it."""
    waits = not row.parents or ids_in(row.parents) == (before.request_id,)
    return waits and _said(before) == row.context_tokens < prompt_tokens(row)


def _plain(value_ms: float) -> float | int:
    return int(value_ms) if value_ms.is_integer() else value_ms


def _hash_ids(rows: Sequence[TraceRow], fresh: "count[int]") -> Iterator[list[int]]:
    """Yield the hashes of each prompt. Those of its reply follow on them: a later prompt may repeat both."""
    before = repeated_places(rows)
    of_group: dict[str, list[int]] = {}
    chains: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        num_prompt = -(-prompt_tokens(row) // _BLOCK_TOKENS)
        num_whole = (prompt_tokens(row) + row.output_tokens) // _BLOCK_TOKENS
        chain = chains.get(before.get(place, -1), [])[: row.context_tokens // _BLOCK_TOKENS]
        if not chain and row.prefix_group:
            shared = of_group.setdefault(row.prefix_group, [])
            while len(shared) < row.prefix_length // _BLOCK_TOKENS:
                shared.append(next(fresh))
            chain = shared[: row.prefix_length // _BLOCK_TOKENS]
        chain = chain[:num_prompt]
        chain += [next(fresh) for _ in range(max(num_prompt, num_whole) - len(chain))]
        chains[place] = chain
        yield chain[:num_prompt]
