"""Random runs give what literal transcriptions of vLLM's and BLIS's rules gave, sequence by sequence.

A line of the table has the rules and a digest of each run, by seed. The transcriptions had been compared with both
originals; `git log -- tests/oracle_scheduler` finds them. Runs with CPU memory for KV blocks were compared with vLLM's
own scheduler and OffloadingConnector: `python -m workshop.vllm_oracle --features offloading`. With devices
behind that memory its TieringOffloadingManager was compared, too: `--features tiers`.
"""

import csv
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from workshop.vllm_oracle.features import drawn_workload
from workshop.vllm_oracle.simulated import changes
from workshop.vllm_oracle.workload import Workload, draw_workload

TABLE = Path(__file__).parent / "tables" / "runs.csv"


def blis_workload(seed: int) -> Workload:
    workload = draw_workload(seed, False)
    return replace(workload, config=replace(workload.config, engine="blis"))


FEATURES: dict[str, tuple[bool, str]] = {
    "vllm": (False, ""),
    "vllm, asynchronous": (True, ""),
    "drafts": (False, "drafts"),
    "drafts, asynchronous": (True, "drafts"),
    "cpu memory": (False, "offloading"),
    "cpu memory, asynchronous": (True, "offloading"),
    "cpu memory, windows, asynchronous": (True, "offloading windows"),
    "cpu memory, states": (False, "offloading states"),
    "cpu memory, drafts, asynchronous": (True, "offloading drafts"),
    "cpu memory, windows, drafts": (False, "offloading windows drafts"),
    "cpu memory, states, drafts, asynchronous": (True, "offloading states drafts"),
    "cpu memory, 2 stages, asynchronous": (True, "offloading 2-stages"),
    "cpu memory, media": (False, "offloading media"),
    "cpu memory, media, asynchronous": (True, "offloading media"),
    "devices": (False, "tiers"),
    "devices, asynchronous": (True, "tiers"),
    "devices, windows, asynchronous": (True, "tiers windows"),
    "devices, states": (False, "tiers states"),
    "devices, drafts, 3 stages": (False, "tiers drafts 3-stages"),
    "cpu memory, windows, 2 stages": (False, "offloading windows 2-stages"),
}
"""Whether steps are composed ahead, and the features of `workshop.vllm_oracle`, by the rules of a line."""


def workload_of(rules: str, seed: int) -> Workload:
    if rules == "blis":
        return blis_workload(seed)
    is_async, features = FEATURES[rules]
    return drawn_workload(seed, is_async, features.split())


def digest(rules: str, seed: int) -> str:
    return sha256(repr(changes(workload_of(rules, seed), reports_steps=True)).encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    ("rules", "recorded"), [(row[0], row[1:]) for row in csv.reader(TABLE.read_text().splitlines())]
)
def test_runs_are_those_recorded(rules: str, recorded: list[str]) -> None:
    found = [digest(rules, seed) for seed in range(len(recorded))]
    assert [seed for seed, (ours, theirs) in enumerate(zip(found, recorded, strict=True)) if ours != theirs] == []
