"""Servers of eight kinds, served, observed and replayed without a flag: the replay has the server's settings and rows.

How exact it is, `python -m workshop.served_kinds` says of all kinds, on a machine that does nothing else.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from traces.server_settings import located_settings
from workshop.served_kinds.__main__ import tried
from workshop.served_kinds.kinds import KINDS

pytestmark = pytest.mark.slow

RECORDED: dict[str, dict[str, Any]] = {
    "adapters that leave": {"enable_lora": True, "max_cpu_loras": 2, "lora_load_ms": 60.0, "lora_swap_ms": 15.0},
    "offloading": {"kv_offloading_size": 4.0, "total_kv_blocks": 300},
    "data-parallel ranks": {"dp": 2},
    "pools": {"prefill_instances": 1, "decode_instances": 2},
    "n-grams": {},
    "embeddings beside chat": {},
    "priorities": {"scheduling_policy": "priority", "max_num_seqs": 3},
    "several API servers": {},
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_says_what_its_server_was(name: str, tmp_path: Path) -> None:
    given = Namespace(speed=0.5, rate=8.0, requests=10, keep=str(tmp_path))
    found = tried(name, KINDS[name], given, 1)
    assert found.num_rows == found.num_compared == found.statuses["ok"] >= 10
    settings = located_settings(tmp_path / f"{name.replace(' ', '-')}-1.yaml")
    assert {key: settings[key][0] for key in RECORDED[name]} == RECORDED[name]
