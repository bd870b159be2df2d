"""LoRA adapters in `blis run` and `blis replay`: the file, the flags, and requests that name one as their model."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run

MODEL = ["--model", "qwen/qwen3-14b"]
FILE = "lora: {adapter_capacity: 1, adapters: [{id: a, rank: 8}, {id: b, rank: 16}]}"
CLIENT = (
    "  - {id: %s, %s, rate_fraction: 0.5, arrival: {process: poisson}, "
    "input_distribution: {type: constant, params: {value: 300}}, "
    "output_distribution: {type: constant, params: {value: 40}}}\n"
)
SPEC = "version: '2'\nseed: 1\naggregate_rate: 6\nnum_requests: 20\nclients:\n"


@pytest.fixture
def lora(tmp_path: Path) -> str:
    path = tmp_path / "lora.yaml"
    path.write_text(FILE)
    return str(path)


def spec(folder: Path, key: str) -> str:
    """A workload whose clients name the adapters a and b by this key."""
    path = folder / f"{key}.yaml"
    path.write_text(SPEC + "".join(CLIENT % (name, f"{key}: {name}") for name in "ab"))
    return str(path)


def metrics(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("engine", ["vllm", "blis"])
@pytest.mark.parametrize("key", ["adapter", "model"])
def test_an_adapter_may_be_named_as_a_model(
    engine: str, key: str, lora: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = ["--engine", engine, "--lora-config", lora, "--workload-spec", spec(tmp_path, key)]
    found = metrics(capsys, "run", *MODEL, *simulated)
    assert found["completed_requests"] == 20
    assert list(found["adapters"]) == ["a", "b"]
    assert min(each["load_count"] for each in found["adapters"].values()) > 1


def test_room_for_all_and_short_loads_make_requests_faster(
    lora: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", *MODEL, "--engine", "blis", "--lora-config", lora, "--workload-spec", spec(tmp_path, "adapter")]
    slow = metrics(capsys, *given, "--lora-load-base-latency-us", "100000")
    usual = metrics(capsys, *given)
    roomy = metrics(capsys, *given, "--lora-adapter-capacity", "2")
    assert slow["ttft_mean_ms"] > usual["ttft_mean_ms"] > roomy["ttft_mean_ms"]
    by_bytes = ["--lora-footprint-bytes-per-rank", "1e9", "--lora-load-bandwidth-bytes-us", "1e5"]
    assert metrics(capsys, *given, *by_bytes)["ttft_mean_ms"] > slow["ttft_mean_ms"]


def test_flags_of_vllm_take_every_name_for_an_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", *MODEL, "--workload-spec", spec(tmp_path, "model"), "--enable-lora"]
    one = metrics(capsys, *given)
    assert metrics(capsys, *given, "--max-loras", "2")["ttft_mean_ms"] < one["ttft_mean_ms"]
    slow = metrics(capsys, *given, "--lora-load-ms", "200", "--lora-swap-ms", "40")
    assert slow["ttft_mean_ms"] > one["ttft_mean_ms"]
    kept = metrics(capsys, *given, "--lora-load-ms", "200", "--lora-swap-ms", "40", "--max-cpu-loras", "2")
    assert slow["ttft_mean_ms"] > kept["ttft_mean_ms"] > one["ttft_mean_ms"]


@pytest.mark.parametrize("column", ["adapter", "model"])
def test_a_recording_with_adapters_is_replayed_as_it_was_run(
    column: str, lora: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced, simulated = str(tmp_path / "t"), ["--engine", "blis", "--lora-config", lora]
    first = metrics(
        capsys, "run", *MODEL, *simulated, "--workload-spec", spec(tmp_path, "adapter"), "--trace-output", traced
    )
    rows = list(csv.DictReader(Path(f"{traced}.csv").read_text().splitlines()))
    if column == "model":
        rows = [{**row, "model": row["adapter"], "adapter": ""} for row in rows]
    with Path(f"{traced}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    again = metrics(capsys, "replay", f"{traced}.yaml", *MODEL, *simulated)
    assert again["adapters"] == first["adapters"]
    assert again["ttft_mean_ms"] == first["ttft_mean_ms"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lora: {}", "lora: adapters must list at least one adapter with id and rank"),
        ("lora: {adapters: [{id: a}]}", "lora.adapters[0]: id and rank must be given"),
        ("lora: {adapters: [{id: a, rank: 0}]}", "rank: expected a whole number between 1 and 65536, got 0"),
        ("lora: {adapters: [{id: a, rank: 8}, {id: a, rank: 8}]}", "the adapter 'a' is declared twice"),
        ("lora: {adapters: [{id: a, rank: 8}]}", "needs adapter_capacity, or give --lora-adapter-capacity"),
        ("lora: {adapters: [{id: a, rank: 8}], slots: 1}", "unknown key 'slots'"),
        ("adapters: []", "unknown key 'adapters', known are lora"),
        ("lora: {adapter_capacity: 1, adapters: [{id: a, rank: 8}]}", "must declare all adapters of requests, got 'b'"),
        (
            "lora: {adapter_capacity: 90000, adapters: [{id: a, rank: 8}, {id: b, rank: 8}]}",
            "90000 adapters of 16000000 bytes leave no room for a KV cache",
        ),
    ],
)
def test_what_a_file_lacks_is_named_with_the_file(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(text)
    assert run(["run", *MODEL, "--lora-config", str(path), "--workload-spec", spec(tmp_path, "adapter")]) == 2
    assert f"error: {path}" in (said := capsys.readouterr().err)
    assert problem in said


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--enable-lora"], "--lora-config and --enable-lora exclude each other: both say how adapters are loaded"),
        (["--engine", "sarathi"], "--lora-config needs --engine vllm or blis, got sarathi"),
        (["--engine", "blis", "--kv-cpu-blocks", "9"], "--lora-config and --kv-cpu-blocks exclude each other"),
    ],
)
def test_what_excludes_a_file_is_named(
    flags: list[str], problem: str, lora: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", *MODEL, "--num-requests", "1", "--lora-config", lora, *flags]) == 2
    assert problem in capsys.readouterr().err
