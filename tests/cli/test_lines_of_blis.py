"""Command lines written for BLIS run unchanged, and name what has no effect here."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.options import options_of
from replay.replay_options import ReplayOptions
from tests.cli.lines_of_blis import OBSERVE, OTHERS, REPLAY, RUN

LENGTHS = "{type: constant, params: {value: %d}}"
CLIENT = (
    "  - {id: %s, rate_fraction: 0.5, arrival: {process: poisson}, input_distribution: "
    + LENGTHS % 60
    + ", output_distribution: "
    + LENGTHS % 8
    + ", %s}\n"
)
SPEC = "version: '2'\nseed: 3\naggregate_rate: 20\nnum_requests: 6\nclients:\n"
FILES = {
    "spec.yaml": SPEC + CLIENT % ("c", "streaming: true") + CLIENT % ("d", "tenant_id: t"),
    "adapters.yaml": SPEC + CLIENT % ("a", "adapter: a") + CLIENT % ("b", "adapter: b"),
    "sessions.yaml": SPEC + CLIENT % ("s", "reasoning: {multi_turn: {max_rounds: 3, think_time_us: 1000}}"),
    "lora.yaml": "lora: {adapter_capacity: 2, adapters: [{id: a, rank: 8}, {id: b, rank: 16}]}\n",
    "offload.yaml": (
        "kv_offload:\n  cpu_bytes_to_use: 1073741824\n  secondary_tiers:\n"
        "    - {type: fs, root_dir: /mnt/kv, direct_io: true, device_class: nvme_gen4}\n"
    ),
    "policy.yaml": (
        "admission: {policy: always-admit}\nrouting: {policy: weighted, scorers: [{name: queue-depth, weight: 1}]}\n"
    ),
    "autoscaler.yaml": (
        "autoscaler: {interval_us: 10000000, analyzer: {scale_up_threshold: 0.8}}\n"
        "node_pools: [{name: a, gpu_type: H100, gpus_per_node: 8, gpu_memory_gib: 80, initial_nodes: 1}]\n"
    ),
    "saturation.yaml": "threshold: {threshold_ms: 4000}\nbacklog_drift: {window_size_sec: 20}\n",
    "gpus.json": '{"H100": {"TFlopsPeak": 989.5, "TFlopsFP8": 1979, "BwPeakTBs": 3.35, "mfuPrefill": 0.45, '
    '"mfuDecode": 0.3, "MemoryGiB": 80}}',
    "stages.yaml": (
        "inference_perf:\n  stages: [{rate: 5, duration: 2}]\n  shared_prefix: {num_unique_system_prompts: 2, "
        "num_users_per_system_prompt: 2, system_prompt_len: 20, question_len: 10, output_len: 5}\n"
    ),
    "reference.json": json.dumps(
        {"model": "m"}
        | {
            f"adapter_{kind}": {"ttft": 30, "output_throughput": 100, "total_throughput": 200}
            for kind in ("aware", "blind")
        }
    ),
    "servegen/chunk-0-trace.csv": "0,2,1.5,Gamma,0.44,1.1\n28800,2,1.5,Gamma,0.44,1.1\n50400,2,1.5,Gamma,0.44,1.1\n",
    "servegen/chunk-0-dataset.json": json.dumps(
        {at: {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{20: 1.0}"} for at in ("0", "28800", "50400")}
    ),
}
TRACES = [
    "run --model qwen/qwen3-14b --rate 20 --num-requests 6 --trace-output T --results-path T.results.json "
    "--metrics-path T.metrics.json --record-itl --engine blis",
    "run --model qwen/qwen3-14b --workload-spec sessions.yaml --trace-output S",
    "run --model qwen/qwen3-14b --workload-spec adapters.yaml --trace-output A",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with all files that command lines name."""
    where, before = tmp_path_factory.mktemp("lines"), Path.cwd()
    for name, text in FILES.items():
        path = where / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    model = where / "model"
    model.mkdir()
    checkpoint = load_model("qwen/qwen3-14b").checkpoint
    assert checkpoint is not None
    (model / "config.json").write_text(json.dumps(checkpoint.config))
    os.chdir(where)
    try:
        for line in TRACES:
            assert run(line.split()) == 0
        yield where
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    script = Path(__file__).parents[1] / "observe" / "fake_server.py"
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def sized(line: str) -> str:
    """The line with few requests where it names no number of them."""
    has_size = any(flag in line for flag in ("--num-requests", "--workload-spec", "--horizon"))
    return line if has_size or not line.startswith("run ") else f"{line} --num-requests 5"


def as_replay(line: str) -> str:
    """The line of a replay with those flags of a run that a replay has, too."""
    known = {flag for setting in options_of(ReplayOptions) for flag in setting.spellings}
    kept: list[str] = []
    for flag, *value in (each.split() for each in re.split(r" (?=--)", line)[1:]):
        kept += [flag, *value] if flag in known else []
    trace = "A" if "adapters.yaml" in line else "T"
    mode = ["--session-mode", "closed-loop"] if "--think-time-ms" in kept else []
    return " ".join(["replay", "--trace-header", f"{trace}.yaml", "--trace-data", f"{trace}.csv", *mode, *kept])


OF_ENGINES = re.compile("--(max-|scheduler|total-kv|long-prefill|kv-|lora|flow|prefill-|admission|routing-s|enable)")
"""Flags that reach a scheduler, a cache or the reports of an instance to its router."""
REPLAYED = [as_replay(line) for line in RUN]


def test_every_flag_of_blis_is_in_a_line(shared: Path) -> None:
    flags = json.loads((shared / "golden" / "tools" / "help" / "flags.json").read_text())
    lines = {"run": RUN, "replay": [*REPLAY, *REPLAYED], "observe": OBSERVE, "calibrate": OTHERS}
    for command, of_command in lines.items():
        used = {flag for line in of_command if line.startswith(command) for flag in re.findall(r"--([\w-]+)", line)}
        assert [each["name"] for each in flags[command] if each["name"] not in used] == [], command


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", [*RUN, *REPLAY, *OTHERS])
def test_a_line_of_a_simulation_runs(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(sized(line).split())
    assert code == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", list(dict.fromkeys(REPLAYED)))
def test_a_line_of_a_run_is_one_of_a_replay(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", [line for line in RUN if OF_ENGINES.search(line)])
def test_a_line_of_a_simulation_runs_with_the_scheduling_of_blis(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run([*sized(line).split(), "--engine", "blis"])
    assert code == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", OBSERVE)
def test_a_line_of_a_load_client_runs(line: str, server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.replace("U", server_url) if word in ("U", "U/metrics") else word for word in line.split()]
    assert run(words) == 0, capsys.readouterr().err


WITHOUT_EFFECT = {
    "--lazy-generation": "--lazy-generation has no effect: the requests are the same",
    "--defaults-filepath d.yaml": "--defaults-filepath has no effect, d.yaml is not read",
    "--num-instances 3 --prefill-decode-instances 2 --encode-instances 1 --encode-decider always": (
        "--encode-decider always has no effect: encoding takes no time"
    ),
    "--encode-decider multimodal": "--encode-decider multimodal has no effect without --encode-instances",
    "--lora-adapter-capacity 3": "--lora-adapter-capacity has no effect without adapters in --lora-config",
    "--max-loras 2": "--max-loras has no effect without --enable-lora",
}


@pytest.mark.parametrize("flags", WITHOUT_EFFECT)
def test_a_flag_without_effect_is_named(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*["run", "--model", "qwen/qwen3-14b", "--num-requests", "1"], *flags.split()]) == 0
    assert f"blis run: {WITHOUT_EFFECT[flags]}" in capsys.readouterr().err


WALKTHROUGH = [
    "observe --server-url U --model ok --rate 50 --num-requests 4 --prompt-tokens 20 --prompt-tokens-stdev 0"
    " --output-tokens 3 --output-tokens-stdev 0 --trace-header trace.yaml --trace-data trace.csv",
    "replay --trace-header trace.yaml --trace-data trace.csv --model qwen/qwen3-14b --results-path results.json",
    "calibrate --trace-header trace.yaml --trace-data trace.csv --sim-results results.json --report calibration.json",
]
"""The pipeline of BLIS with the flags that its three commands demand."""


def test_the_pipeline_of_blis_runs_as_written(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in WALKTHROUGH:
        assert run(line.replace(" U ", f" {server_url} ").split()) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "calibration.json").read_text())
    assert report["trace_info"]["matched_pairs"] == 4
    assert set(report["metrics"]) >= {"ttft", "e2e"}
