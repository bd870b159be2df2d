"""Traces written as files of other programs: CSV tables of Azure and Vidur, Mooncake's JSON lines.

Prompts that begin alike, because they share a prefix group or repeat an earlier prompt and its reply, have equal
hashes in Mooncake's form for the blocks that they share as a whole.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from traces.graph import repeated_places
from traces.header import TraceHeader
from traces.rows import TraceRow
from traces.text_file import writing


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


def unsupported_columns_note(rows: Sequence[TraceRow], kept: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a note about the columns with values in some row that a format has no place for, beside those `kept`."""
    columns = {
        "client_id": "",
        "tenant_id": "",
        "slo_class": "",
        "session_id": "",
        "prefix_group": "",
        "context_tokens": 0,
        "model": "",
        "adapter": "",
        "parents": "",
        "first_chunk_time_us": 0,
        "status": "",
    }
    found = [
        name for name, empty in columns.items() if name not in kept and any(getattr(row, name) != empty for row in rows)
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
_KEPT = ("session_id", "prefix_group", "context_tokens")


def mooncake(given: ToExport) -> Exported:
    """Write a line for each request, with sessions and pauses in aiperf's form."""
    with writing(given.path) as file:
        for row, hash_ids in zip(given.rows, _hash_ids(given.rows), strict=True):
            line: dict[str, float | list[int] | str] = {
                "timestamp": _plain(row.arrival_time_us / 1000),
                "input_length": prompt_tokens(row),
                "output_length": row.output_tokens,
                "hash_ids": hash_ids,
            }
            if row.session_id:
                line["session_id"] = row.session_id
            if row.session_id and row.round_index:
                line["delay"] = _plain(row.think_time_us / 1000)
            file.write(json.dumps(line) + "\n")
    return Exported(notes=unsupported_columns_note(given.rows, _KEPT))


def _plain(value_ms: float) -> float | int:
    return int(value_ms) if value_ms.is_integer() else value_ms


def _hash_ids(rows: Sequence[TraceRow]) -> Iterator[list[int]]:
    """Yield the hashes of each prompt. Those of its reply follow on them: a later prompt may repeat both."""
    fresh, before = count(), repeated_places(rows)
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
