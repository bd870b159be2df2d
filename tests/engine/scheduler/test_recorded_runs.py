"""Random runs give what literal transcriptions of vLLM's and BLIS's rules gave, sequence by sequence.

A line of the table has the rules and a digest of each run, by seed. The transcriptions had been compared with both
originals; `git log -- tests/oracle_scheduler` finds them.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from workshop.vllm_oracle.simulated import changes
from workshop.vllm_oracle.speculation import with_speculation
from workshop.vllm_oracle.workload import Workload, draw_workload

TABLE = Path(__file__).parent / "tables" / "runs.csv"


def blis_workload(seed: int) -> Workload:
    workload = draw_workload(seed, False)
    return replace(workload, config=replace(workload.config, engine="blis"))


RULES: dict[str, Callable[[int], Workload]] = {
    "vllm": lambda seed: draw_workload(seed, False),
    "vllm, asynchronous": lambda seed: draw_workload(seed, True),
    "drafts": lambda seed: with_speculation(draw_workload(seed, False), seed),
    "drafts, asynchronous": lambda seed: with_speculation(draw_workload(seed, True), seed),
    "blis": blis_workload,
}


def digest(rules: str, seed: int) -> str:
    return sha256(repr(changes(RULES[rules](seed), reports_steps=True)).encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    ("rules", "recorded"), [(row[0], row[1:]) for row in csv.reader(TABLE.read_text().splitlines())]
)
def test_runs_are_those_recorded(rules: str, recorded: list[str]) -> None:
    found = [digest(rules, seed) for seed in range(len(recorded))]
    assert [seed for seed, (ours, theirs) in enumerate(zip(found, recorded, strict=True)) if ours != theirs] == []
