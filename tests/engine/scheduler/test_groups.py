"""Groups of KV caches: blocks are taken, found, given back and evicted as by vLLM's KV cache manager."""

import csv
from itertools import groupby
from pathlib import Path

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache
from blis_sim.engine.memory.kv_groups import FULL, SLIDING, KVCacheGroupSpec
from blis_sim.engine.sequence import Sequence
from tests.fakes import request
from workshop.vllm_oracle.features import drawn_workload, with_groups
from workshop.vllm_oracle.simulated import changes, simulated_story
from workshop.vllm_oracle.table import block_rows
from workshop.vllm_oracle.workload import draw_workload

TABLE = Path(__file__).parent / "tables" / "groups.csv"
"""Written by `python -m workshop.vllm_oracle --features KIND --table` with vLLM 0.33: kind of model, kind of
scheduling, seed, instant, tokens by request, preempted requests, free blocks, tokens found."""

Drawn = tuple[str, bool, int]


def captured() -> list[tuple[Drawn, list[str]]]:
    with TABLE.open() as file:
        rows = list(csv.reader(file))
    return [
        ((kind, scheduling == "async", int(seed)), [",".join(row) for row in story])
        for (kind, scheduling, seed), story in groupby(rows, lambda row: row[:3])
    ]


@pytest.mark.parametrize(("drawn", "story"), captured(), ids=str)
def test_blocks_of_groups_change_hands_as_with_vllm(drawn: Drawn, story: list[str]) -> None:
    kind, async_scheduling, seed = drawn
    workload = with_groups(draw_workload(seed, async_scheduling), seed, kind)
    assert list(block_rows(kind, async_scheduling, seed, simulated_story(workload).reported())) == story


def test_the_table_has_preemptions_and_hits_of_every_kind_of_model() -> None:
    kinds = {drawn[0] for drawn, _ in captured()}
    assert kinds == {"windows", "chunks", "states", "latent"}
    for kind in kinds:
        rows = [row.split(",") for drawn, story in captured() if drawn[0] == kind for row in story]
        assert any(int(row[7]) for row in rows), kind
    assert any(row.split(",")[5] for _, story in captured() for row in story)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_reporting_changes_no_step_of_a_model_with_groups(async_scheduling: bool) -> None:
    for seed in range(4):
        workload = with_groups(draw_workload(seed, async_scheduling), seed, "windows")
        assert changes(workload, reports_steps=True) == changes(workload, reports_steps=False)


@pytest.mark.parametrize(("features", "seed"), [(["windows"], 212), (["windows", "media"], 18)])
def test_leaping_changes_no_step_where_a_window_gives_back_what_full_attention_takes(
    features: list[str], seed: int
) -> None:
    workload = drawn_workload(seed, True, features)
    assert changes(workload, reports_steps=False) == simulated_story(workload).changes


def test_all_groups_of_a_decoding_request_give_back_before_the_first_takes() -> None:
    groups = (KVCacheGroupSpec(FULL, 16), KVCacheGroupSpec(SLIDING, 16, reach_tokens=17))
    cache = GroupedKVCache(EngineConfig(20, kv_groups=groups), counts=True)
    preempted, decoding = Sequence(request("preempted", 17), 0), Sequence(request("decoding", 64), 0)
    for sequence in (preempted, decoding):
        assert cache.admit(sequence, sequence.input_tokens, cache.cached_prefix(sequence), True, False)
    cache.evict(preempted)
    preempted.num_preemptions = 1
    cache.take(cache.num_blocks - cache.num_used_blocks - 2)  # the two left hold the first 16 tokens
    cache.decode(decoding, 64, 64, 1)
    assert cache.num_found_tokens(cache.cached_prefix(preempted)) == 16, "three blocks came back and two were taken"
