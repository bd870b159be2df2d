"""Mooncake's JSON lines: milliseconds, lengths, and hashes of the prompt's blocks of 512 tokens.

Prompts that begin alike, because they share a prefix group or repeat an earlier prompt and its reply, have equal hashes
for the blocks that they share as a whole.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import count

from traces.exporters.exported import Exported, ToExport, lost, prompt_tokens
from traces.rows import TraceRow
from traces.text_file import writing
from traces.waiting import repeated_places

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
    return Exported(notes=lost(given.rows, _KEPT))


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
