"""`--kv-offload-config`: CPU memory and devices behind the KV cache, of a file or of a simulated trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run

MODEL = ["--model", "qwen/qwen3-14b", "--total-kv-blocks", "400"]
TIER = "{type: fs, root_dir: /mnt, direct_io: true, %s}"
CLIENTS = "".join(
    f"  - {{id: {name}, rate_fraction: 0.25, prefix_group: {name}, prefix_length: 2000, arrival: {{process: poisson}}, "
    "input_distribution: {type: constant, params: {value: 100}}, "
    "output_distribution: {type: constant, params: {value: 5}}}\n"
    for name in "wxyz"
)
SPEC = f"version: '2'\nseed: 1\naggregate_rate: 6\nnum_requests: 40\nclients:\n{CLIENTS}"


def offload(folder: Path, content: str) -> str:
    path = folder / "offload.yaml"
    path.write_text(f"kv_offload: {content}\n")
    return str(path)


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return ["run", *MODEL, "--workload-spec", str(path)]


def metrics(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("engine", ["vllm", "blis"])
def test_memory_of_the_cpu_keeps_what_the_gpu_loses(
    engine: str, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = metrics(capsys, *given, "--engine", engine)["breakdown"]["cache_hit_rate"]
    config = offload(tmp_path, f"{{cpu_bytes_to_use: {4 * 2**30}}}")
    kept = metrics(capsys, *given, "--engine", engine, "--kv-offload-config", config)
    if engine == "blis":
        assert kept["breakdown"]["cache_hit_rate"] > lost
        assert kept["breakdown"]["kv_cpu_tier"]["blocks_brought_back"] > 0
    else:
        alike = metrics(capsys, *given, "--engine", engine, "--kv-offloading-size", "4")
        assert kept == alike


def test_a_slow_device_lets_requests_wait_longer(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for device in ("device_class: cpu_dram", "device_class: s3"):
        config = offload(tmp_path, f"{{cpu_bytes_to_use: {2**29}, secondary_tiers: [{TIER % device}]}}")
        found.append(metrics(capsys, *given, "--engine", "blis", "--kv-offload-config", config)["ttft_mean_ms"])
    assert found[0] < found[1]


def test_a_device_keeps_what_cpu_memory_loses_with_vllm(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = f"cpu_bytes_to_use: {2**29}"
    rates, times = [], []
    for tiers in ("", TIER % "device_class: cpu_dram", TIER % "device_class: s3"):
        config = offload(tmp_path, f"{{{size}, secondary_tiers: [{tiers}]}}")
        found = metrics(capsys, *given, "--kv-offload-config", config)
        rates.append(found["breakdown"]["cache_hit_rate"])
        times.append(found["ttft_mean_ms"])
    assert rates[1] > rates[0]
    assert times[1] < min(times[0], times[2])


@pytest.mark.parametrize(("instances", "is_named"), [("1", False), ("2", True)])
def test_several_engines_with_devices_say_that_they_share_no_folder(
    instances: str, is_named: bool, given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = offload(tmp_path, f"{{cpu_bytes_to_use: {2**29}, secondary_tiers: [{TIER % 'device_class: s3'}]}}")
    assert run([*given, "--kv-offload-config", config, "--num-instances", instances, "--json"]) == 0
    assert ("in a shared folder, the others do not find" in capsys.readouterr().err) == is_named


@pytest.mark.slow
def test_a_plan_has_the_devices_of_a_file(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", *given[1:], "--gpus", "H100", "--tp-sizes", "1", "--shapes", "aggregated", "--ttft-p99", "10s"]
    found = []
    for tiers in ("", TIER % "device_class: cpu_dram"):
        config = offload(tmp_path, f"{{cpu_bytes_to_use: {2**29}, secondary_tiers: [{tiers}]}}")
        arguments = ["--precisions", "checkpoint", "--step-tokens", "2048", "--kv-offload-config", config, "--json"]
        assert run([*plan, *arguments]) == 0
        found.append(json.loads(capsys.readouterr().out)["answers"][0]["figures"]["ttft_mean_ms"])
    assert found[1] < found[0]


def test_the_header_of_a_simulated_trace_has_them(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = f"{{cpu_bytes_to_use: {2**29}, secondary_tiers: [{TIER % 'device_class: s3'}]}}"
    config, traced = offload(tmp_path, content), tmp_path / "t"
    first = metrics(capsys, *given, "--engine", "blis", "--kv-offload-config", config, "--trace-output", str(traced))
    header = Path(f"{traced}.yaml")
    assert "device_class: s3" in header.read_text()
    replayed = ["replay", str(header), *MODEL, "--engine", "blis"]
    assert metrics(capsys, *replayed)["ttft_mean_ms"] == first["ttft_mean_ms"]
    assert run([*replayed, "--kv-offload-config", config]) == 2
    assert f"--kv-offload-config and the kv_offload of {header} exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "cpu_bytes_to_use must be given"),
        ("{cpu_bytes_to_use: 0}", "cpu_bytes_to_use: expected a whole number between 1"),
        ("{cpu_bytes_to_use: 9, size: 1}", "unknown key 'size'"),
        ("{cpu_bytes_to_use: 9, blocks_per_chunk: 2}", "blocks_per_chunk must be 1"),
        ("{cpu_bytes_to_use: 9, eviction_policy: arc}", "eviction_policy: expected lru"),
        ("{cpu_bytes_to_use: 9, secondary_tiers: [{type: fs}]}", "direct_io must be given"),
        ("{cpu_bytes_to_use: 9, secondary_tiers: [{type: s3}]}", "type: expected fs"),
        ("{cpu_bytes_to_use: 9, secondary_tiers: [{type: fs, locality: near}]}", "locality: expected LOCAL or REMOTE"),
        ("{cpu_bytes_to_use: 9, secondary_tiers: [{type: fs, direct_io: true}]}", "device_class, or read_bandwidth"),
        ("{cpu_bytes_to_use: 9}", "CPU memory must hold at least one KV block, 2621440 bytes"),
    ],
)
def test_what_a_file_lacks_is_named(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = offload(tmp_path, content)
    assert run(["run", *MODEL, "--engine", "blis", "--num-requests", "1", "--kv-offload-config", config]) == 2
    assert problem in capsys.readouterr().err
