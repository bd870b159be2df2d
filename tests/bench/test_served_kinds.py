"""Servers of many kinds, observed and replayed without a flag: the recording says what the server was."""

import json
import urllib.request
from pathlib import Path

import pytest

import blis_sim
from blis_sim.cli.main import run
from tests.patience import attempts
from traces import read_trace
from traces.server_settings import engine_settings

KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "pipeline stages": ("qwen/qwen3-14b", {"pp": 2}),
    "data-parallel ranks": ("qwen/qwen3-14b", {"dp": 2}),
    "expert parallelism": ("qwen/qwen3-30b-a3b", {"dp": 2, "enable_expert_parallel": True}),
    "instances": ("qwen/qwen3-14b", {"num_instances": 3, "routing_policy": "least-loaded"}),
    "pools": ("qwen/qwen3-14b", {"prefill_instances": 1, "decode_instances": 2}),
    "offloading": (
        "qwen/qwen3-14b",
        {"kv_offloading_size": 4.0, "total_kv_blocks": 300, "max_model_len": 4096},
    ),
    "speculation": (
        "qwen/qwen3-14b",
        {"speculative_config": json.dumps({"method": "ngram", "num_speculative_tokens": 3})},
    ),
    "preemption by priority": ("qwen/qwen3-14b", {"scheduling_policy": "priority", "max_num_seqs": 4}),
}
SPEC = """version: "2"
seed: 1
aggregate_rate: 24
num_requests: 24
clients:
"""
CLIENT = (
    "  - {id: %s, adapter: %s, rate_fraction: 0.5, arrival: {process: poisson}, "
    "input_distribution: {type: gaussian, params: {mean: 300, std_dev: 100, min: 16, max: 900}}, "
    "output_distribution: {type: constant, params: {value: 40}}}\n"
)


@pytest.mark.slow
def test_the_adapters_of_a_server_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC + "".join(CLIENT % (name, name) for name in ("one", "two")))
    settings = {"enable_lora": True, "max_cpu_loras": 2, "lora_load_ms": 90.0, "lora_swap_ms": 20.0}
    modules = ("one=adapters/one", "two=adapters/two")
    with blis_sim.server("qwen/qwen3-14b", speed=0.5, lora_modules=modules, **settings) as server:  # type: ignore[arg-type]
        for number, _ in enumerate(attempts()):
            words = ["--workload-spec", "spec.yaml", "--rate", "4", "--seed", str(number), "-o", "served"]
            assert run(["observe", "--url", server.url, *words]) == 0
            errors = blis_sim.calibrate("served.yaml").metrics
            rows = read_trace("served.yaml").rows
            assert errors["ttft"].count == len(rows) == 24
            if errors["ttft"].mape < 0.1 and errors["e2e"].mape < 0.03:
                break
    assert settings.items() <= engine_settings(Path("served.yaml")).items()
    assert {row.model for row in read_trace("served.yaml").rows} == {"one", "two"}


LOAD = [  # milliseconds of a busy machine are a small share of what these take
    "--rate",
    "24",
    "--num-requests",
    "24",
    "--prompt-tokens-stdev",
    "200",
    "--output-tokens",
    "48",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_any_kind_replays_as_it_was(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = KINDS[kind]
    monkeypatch.chdir(tmp_path)
    with blis_sim.server(model, **settings) as server:  # type: ignore[arg-type]
        with urllib.request.urlopen(f"{server.url}/blis/settings") as reply:
            published = json.load(reply)["engine_settings"]
        for number, _ in enumerate(attempts()):
            assert run(["observe", "--url", server.url, *LOAD, "--seed", str(number), "-o", "served"]) == 0
            errors = blis_sim.calibrate("served.yaml").metrics
            if errors["ttft"].mape < 0.25 and errors["e2e"].mape < 0.05:
                break
    assert settings.items() <= published.items() or kind == "offloading"
    taken = engine_settings(Path("served.yaml"))
    assert published.items() <= taken.items()
