"""Random runs give what literal transcriptions of vLLM's and BLIS's rules gave, sequence by sequence.

A line of the table has the rules and a digest of each run, by seed. The transcriptions had been compared with both
originals; `git log -- tests/oracle_scheduler` finds them. Runs with CPU memory for KV blocks were compared with vLLM's
own scheduler and OffloadingConnector: `python -m workshop.vllm_oracle --features offloading`. With devices
behind that memory its TieringOffloadingManager was compared, too: `--features tiers`.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from workshop.vllm_oracle.features import (
    with_groups,
    with_media,
    with_offloading,
    with_pipeline,
    with_speculation,
    with_tiers,
)
from workshop.vllm_oracle.simulated import changes
from workshop.vllm_oracle.workload import Workload, draw_workload

TABLE = Path(__file__).parent / "tables" / "runs.csv"


def blis_workload(seed: int) -> Workload:
    workload = draw_workload(seed, False)
    return replace(workload, config=replace(workload.config, engine="blis"))


def offloaded(
    seed: int,
    is_async: bool,
    groups: str | None = None,
    has_drafts: bool = False,
    num_stages: int = 1,
    has_devices: bool = False,
) -> Workload:
    """Return the workload of a seed with CPU memory for KV blocks, and what else is named."""
    workload = draw_workload(seed, is_async)
    if groups is not None:
        workload = replace(workload, config=replace(workload.config, enable_prefix_caching=True))
        workload = with_groups(workload, seed, groups)
    if has_drafts:
        workload = with_speculation(workload, seed)
    workload = with_offloading(workload, seed)
    if has_devices:
        workload = with_tiers(workload, seed)
    return with_pipeline(workload, seed, num_stages) if num_stages > 1 else workload


RULES: dict[str, Callable[[int], Workload]] = {
    "vllm": lambda seed: draw_workload(seed, False),
    "vllm, asynchronous": lambda seed: draw_workload(seed, True),
    "drafts": lambda seed: with_speculation(draw_workload(seed, False), seed),
    "drafts, asynchronous": lambda seed: with_speculation(draw_workload(seed, True), seed),
    "blis": blis_workload,
    "cpu memory": lambda seed: offloaded(seed, False),
    "cpu memory, asynchronous": lambda seed: offloaded(seed, True),
    "cpu memory, windows, asynchronous": lambda seed: offloaded(seed, True, "windows"),
    "cpu memory, states": lambda seed: offloaded(seed, False, "states"),
    "cpu memory, drafts, asynchronous": lambda seed: offloaded(seed, True, None, True),
    "cpu memory, windows, drafts": lambda seed: offloaded(seed, False, "windows", True),
    "cpu memory, states, drafts, asynchronous": lambda seed: offloaded(seed, True, "states", True),
    "cpu memory, 2 stages, asynchronous": lambda seed: offloaded(seed, True, None, False, 2),
    "cpu memory, media": lambda seed: with_offloading(with_media(draw_workload(seed, False), seed), seed),
    "cpu memory, media, asynchronous": lambda seed: with_offloading(with_media(draw_workload(seed, True), seed), seed),
    "devices": lambda seed: offloaded(seed, False, has_devices=True),
    "devices, asynchronous": lambda seed: offloaded(seed, True, has_devices=True),
    "devices, windows, asynchronous": lambda seed: offloaded(seed, True, "windows", has_devices=True),
    "devices, states": lambda seed: offloaded(seed, False, "states", has_devices=True),
    "cpu memory, windows, 2 stages": lambda seed: offloaded(seed, False, "windows", False, 2),
}


def digest(rules: str, seed: int) -> str:
    return sha256(repr(changes(RULES[rules](seed), reports_steps=True)).encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    ("rules", "recorded"), [(row[0], row[1:]) for row in csv.reader(TABLE.read_text().splitlines())]
)
def test_runs_are_those_recorded(rules: str, recorded: list[str]) -> None:
    found = [digest(rules, seed) for seed in range(len(recorded))]
    assert [seed for seed, (ours, theirs) in enumerate(zip(found, recorded, strict=True)) if ours != theirs] == []
