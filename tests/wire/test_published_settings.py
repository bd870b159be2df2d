"""The settings that a server publishes for replays of its recordings."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import running_server


def published(**settings: Any) -> dict[str, Any]:
    with running_server(**settings) as server:
        found: dict[str, Any] = call(server, "GET", "/blis/settings").json
        return found


def test_settings_of_the_engine_adapters_and_cluster_are_those_of_a_replay() -> None:
    found = published(enable_lora=True, max_loras=2, lora_load_ms=20.0, max_num_seqs=7)
    assert found == {
        "engine_settings": {
            "hardware": "H100",
            "tp": 1,
            "max_model_len": 2048,
            "max_num_seqs": 7,
            "enable_lora": True,
            "max_loras": 2,
            "lora_load_ms": 20.0,
        },
        "other_settings": {},
        "speed": 20.0,
        "interruptions": [],
    }


def test_the_memory_of_a_connector_is_that_of_an_offloading_engine() -> None:
    connector = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}
    found = published(kv_transfer_config=json.dumps(connector))
    assert found["engine_settings"]["kv_offloading_size"] == 8


def test_a_model_that_another_stands_in_for_is_published_as_it_is_simulated() -> None:
    assert published(model="our/own-8b")["engine_settings"]["model"].endswith("8b-instruct")


def test_no_path_of_the_machine_is_published(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("routing: {policy: least-loaded}\n")
    drafter = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    found = published(
        policy_config=str(policy), num_instances=2, speculative_config=drafter, fault_rates=("rate_limit=0.1",)
    )
    assert found["other_settings"] == {"policy_config": "policy.yaml", "fault_rates": ""}
    assert found["engine_settings"]["speculative_config"] == drafter
    assert str(tmp_path) not in json.dumps(found)


def test_a_server_without_a_clock_has_no_speed() -> None:
    assert published(speed=float("inf"))["speed"] is None


def test_pauses_are_published_with_their_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with running_server() as server:
        begun_us = time.time_ns() // 1000
        call(server, "POST", "/pause?mode=keep&clear_cache=false")
        call(server, "POST", "/resume")
        call(server, "POST", "/sleep?level=0")
        call(server, "POST", "/wake_up")
        found = call(server, "GET", "/blis/settings").json["interruptions"]
    assert [kind for _, kind in found] == ["everything", "none", "abort", "admissions", "none"]
    assert sorted(found) == found
    assert begun_us <= found[0][0] <= time.time_ns() // 1000
