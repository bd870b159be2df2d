"""The graphs of --graph-output: a chain on one instance, a transfer between two, and the state of unfinished tasks."""

import json
from pathlib import Path
from typing import Any

from blis_sim.cli.main import run as blis

SMALL = ("--model", "qwen/qwen3-14b", "--prompt-tokens", "1000", "--output-tokens", "50", "--rate", "20")
SPLIT = ("--num-instances", "3", "--prefill-instances", "1", "--decode-instances", "2", "--pd-decider", "always")


def graphs(tmp_path: Path, *flags: str) -> list[dict[str, Any]]:
    file = tmp_path / "graphs.json"
    assert blis(["run", *SMALL, "--num-requests", "6", "--graph-output", str(file), *flags]) == 0
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def test_a_request_on_one_instance_is_a_chain_of_its_prompt_and_its_tokens(tmp_path: Path) -> None:
    found = graphs(tmp_path)
    assert sorted(each["graph"]["request_id"] for each in found) == list(range(6))
    for graph in found:
        prompt, tokens = graph["nodes"]
        assert graph["links"] == [{"source": 0, "target": 1, "type": "chain"}]
        assert (prompt["type"], tokens["type"]) == ("PromptTask", "TokenTask")
        assert {prompt["state"], tokens["state"], graph["graph"]["outcome"]} == {"completed"}
        assert tokens["token_size"] == graph["graph"]["num_decode_tokens"] - 1
        assert graph["graph"]["arrived_at"] <= prompt["started_at"] < prompt["completed_at"] == tokens["started_at"]
        assert prompt["replica_id"] == tokens["replica_id"] == 0


def test_a_prompt_computed_elsewhere_is_transferred_before_its_tokens_begin(tmp_path: Path) -> None:
    found = graphs(tmp_path, *SPLIT)
    assert len(found) == 6
    for graph in found:
        prompt, flow, tokens = graph["nodes"]
        assert [each["type"] for each in graph["links"]] == ["flow", "flow"]
        assert (flow["type"], flow["src"], flow["dest"]) == (
            "KVCacheTransferFlow",
            prompt["replica_id"],
            tokens["replica_id"],
        )
        assert prompt["replica_id"] != tokens["replica_id"]
        assert flow["size"] > 0
        assert prompt["completed_at"] <= flow["started_at"] <= flow["completed_at"] <= tokens["started_at"]


def test_the_state_of_a_task_that_did_not_end_is_that_at_the_end_of_the_run(tmp_path: Path) -> None:
    found = graphs(tmp_path, "--output-tokens", "4000", "--horizon", "200000", "--num-requests", "4")
    states = [[node["state"] for node in graph["nodes"]] for graph in found]
    assert ["completed", "running"] in states
    assert {graph["graph"]["outcome"] for graph in found} == {"unfinished"}
    for graph in found:
        assert all(node.get("completed_at") is None for node in graph["nodes"] if node["state"] == "running")
