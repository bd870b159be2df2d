"""Changes of what the prefix cache holds, group by group, are those that vLLM publishes as KV events."""

import csv
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from workshop.vllm_oracle.features import drawn_workload
from workshop.vllm_oracle.simulated import simulated_story
from workshop.vllm_oracle.table import content_rows

TABLE = Path(__file__).parent / "tables" / "content.csv"
"""Written by `python -m workshop.vllm_oracle --features FEATURES,content --table` with vLLM 0.33: features, kind of
scheduling, seed, change (kind of event, group, tokens of a block, tokens, parent, contents by first mention)."""

Drawn = tuple[str, bool, int]


def captured() -> list[tuple[Drawn, list[str]]]:
    with TABLE.open() as file:
        rows = list(csv.reader(file))
    return [
        ((kind, scheduling == "async", int(seed)), [",".join(row) for row in content])
        for (kind, scheduling, seed), content in groupby(rows, lambda row: row[:3])
    ]


@pytest.mark.parametrize(("drawn", "content"), captured(), ids=lambda value: str(value)[:40])
def test_changes_of_content_are_those_of_vllm(drawn: Drawn, content: list[str]) -> None:
    features, async_scheduling, seed = drawn
    workload = drawn_workload(seed, async_scheduling, [*features.split(), "content"])
    assert list(content_rows(features, async_scheduling, seed, simulated_story(workload).content)) == content


def test_the_table_has_states_kept_inside_of_blocks_which_are_reported_behind_these() -> None:
    seen = [
        (before.split(","), after.split(","))
        for (features, _, _), content in captured()
        if features == "states drafts"
        for before, after in pairwise(content)
    ]
    changes = [(before[3].split(), after[3].split()) for before, after in seen]
    assert any(
        before[0] == after[0] == "BlockStored" and before[1] == after[1] and (len(before), len(after)) == (5, 6)
        for before, after in changes
    )


def test_the_table_has_blocks_stored_and_removed_in_several_groups_and_blocks_full_in_part() -> None:
    seen: Counter[tuple[str, ...]] = Counter()
    for (kind, _, _), content in captured():
        for row in content:
            event, group, *sizes = row.split(",")[3].split()
            seen[kind, event, group] += 1
            seen[kind, "block of", sizes[0]] += event == "BlockStored"
    for kind in ("windows", "states", "chunks"):
        for group in ("0", "1"):
            assert seen[kind, "BlockStored", group], (kind, group)
            assert seen[kind, "BlockRemoved", group], (kind, group)
    assert seen["latent", "BlockStored", "0"]
    assert seen["windows", "block of", "16"]
    assert seen["windows", "block of", "32"]
