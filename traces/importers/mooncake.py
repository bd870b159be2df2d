"""Mooncake traces: JSON lines with milliseconds, lengths, and the hashes of the prompt's blocks of 512 tokens.

Equal hashes are equal starts of prompts. A trace of ours expresses that with groups: all prompts of a group are cut
from one text. Each tree of hashes therefore becomes one group whose text is the path that most requests take, and a
request shares what it has in common with that path.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from traces.importers.arrivals import taken
from traces.importers.imported import Imported, workload_header
from traces.importers.json_fields import at, expect, json_lines
from traces.importers.settings import ConvertOptions
from traces.rows import TraceRow

_BLOCK_TOKENS = 512


def convert(options: ConvertOptions) -> Imported:
    """The requests of a trace, with the prefixes they share. Raises TraceError."""
    rows: list[TraceRow] = []
    hashes: list[list[int]] = []
    for place, entry in json_lines(options.path):
        ids = at(place, entry, "hash_ids", "a list") if "hash_ids" in entry else []
        hashes.append([expect(f"{place} key hash_ids", "a whole number", each) for each in ids])
        rows.append(
            TraceRow(
                request_id=len(rows),
                arrival_time_us=round(at(place, entry, "timestamp", "a number") * 1000),
                input_tokens=at(place, entry, "input_length", "a whole number"),
                output_tokens=at(place, entry, "output_length", "a whole number"),
            )
        )
    grouped, notes = _with_prefixes(rows, hashes)
    left_out: Counter[str] = Counter()
    first = taken(options, grouped, left_out)
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


def _with_prefixes(rows: Sequence[TraceRow], hashes: Sequence[Sequence[int]]) -> tuple[list[TraceRow], tuple[str, ...]]:
    main = _main_paths(hashes)
    num_uses = Counter(each for ids in hashes for each in ids)
    num_shared = num_kept = 0
    grouped = []
    for row, ids in zip(rows, hashes, strict=True):
        path = main.get(ids[0], ()) if ids else ()
        num_common = _num_common(ids, path)
        num_kept += num_common
        num_shared += sum(num_uses[each] > 1 for each in ids)
        # At least one token is the request's own.
        tokens = min(num_common * _BLOCK_TOKENS, max(0, row.input_tokens - 1))
        grouped.append(_in_group(row, f"hash-{ids[0]}", tokens) if tokens else row)
    lost = num_shared - num_kept
    if lost <= 0:
        return grouped, ()
    return grouped, (f"{lost} of {num_shared} shared prompt blocks are shared by other branches and become unshared",)


def _main_paths(hashes: Sequence[Sequence[int]]) -> Mapping[int, Sequence[int]]:
    """For each first hash the path that most requests take from there on, as far as two of them take it."""
    children: dict[int, Counter[int]] = {}
    firsts: Counter[int] = Counter()
    for ids in hashes:
        firsts.update(ids[:1])
        for parent, child in pairwise(ids):
            children.setdefault(parent, Counter())[child] += 1
    paths = {}
    for first, count in firsts.items():
        path = [first] if count > 1 else []
        while path and path[-1] in children:
            child, child_count = min(children[path[-1]].items(), key=lambda each: (-each[1], each[0]))
            if child_count < 2 or child in path:
                break
            path.append(child)
        paths[first] = path
    return paths


def _num_common(ids: Sequence[int], path: Sequence[int]) -> int:
    """How many hashes both begin with."""
    for place, (left, right) in enumerate(zip(ids, path, strict=False)):
        if left != right:
            return place
    return min(len(ids), len(path))


def _in_group(row: TraceRow, group: str, tokens: int) -> TraceRow:
    return replace(row, prefix_group=group, prefix_length=tokens, input_tokens=row.input_tokens - tokens)
