"""Reference cases of one instance: identical latencies per request and identical aggregates."""

import shlex
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from tests.golden.same_files import assert_printed, assert_same_files, read_json

CASES = [
    "base_qwen3_14b",
    "roofline_qwen3_14b",
    "llama8b_a100",
    "mixtral_tp2",
    "scout_fp8_tp2",
    "kv_cpu_tier",
    "kv_pressure_fcfs",
    "kv_pressure_priority",
    "chunked",
    "max_model_len",
    "prefix_cache",
    "prefix_evict",
    "block32_seqs8",
    "overload",
    "priority_fcfs",
    "reverse_priority",
    "sjf",
    "offload_cpu_nvme",
    pytest.param("offload_small_cpu", marks=pytest.mark.slow),
    "offload_s3",
]

RECORDING = "real_qwen3_14b_h100_8rps_first400"
QWEN = "--model qwen/qwen3-14b --hardware H100 --tp 1"
REPLAYS = {
    "qwen3-14b_H100_tp1_trained": (RECORDING, QWEN),
    "qwen3-14b_H100_tp1_roofline": (RECORDING, f"{QWEN} --latency-model roofline"),
    "qwen3-14b_H100_tp1_mbt8192": (RECORDING, f"{QWEN} --max-num-batched-tokens 8192 --total-kv-blocks 18038"),
    "llama-3.1-8b_A100-SXM_tp1_trained": (
        RECORDING,
        "--model meta-llama/llama-3.1-8b-instruct --hardware A100-SXM --tp 1",
    ),
    "qwen2.5-7b_L40S_tp2_trained": (RECORDING, "--model qwen/qwen2.5-7b-instruct --hardware L40S --tp 2"),
    "mixtral-8x7b_H100_tp2_trained": (RECORDING, "--model mistralai/mixtral-8x7b-v0.1 --hardware H100 --tp 2"),
    "codellama-34b_A100-80_tp4_trained": (
        RECORDING,
        "--model codellama/codellama-34b-instruct-hf --hardware A100-80 --tp 4",
    ),
    "qwen3-30b-a3b_H100_tp1_roofline": (
        RECORDING,
        "--model qwen/qwen3-30b-a3b --hardware H100 --tp 1 --latency-model roofline",
    ),
    "qwen3-14b_H100_tp1_trained_shifted_h900": (f"{RECORDING}_shifted", f"{QWEN} --horizon 900000000"),
    "q3_2rps150": ("real_qwen3_14b_h100_2rps_first150", QWEN),
    "s2_noslotarget": ("../run/s2_noslotarget", QWEN),
    "o7_err500": ("../observe_mock/o7_err500", f"{QWEN} --include-failed"),
    "o9_timeout": ("../observe_mock/o9_timeout", f"{QWEN} --include-failed"),
    "o10_midcut": ("../observe_mock/o10_midcut", f"{QWEN} --include-failed"),
    "o12_warmup3": ("../observe_mock/o12_warmup3", QWEN),
}
PRINTED = {
    "replay/s2_noslotarget": ("run/s2_noslotarget", ""),
    "run/s7_multimodal_windows": ("run/s7_multimodal_windows", "--horizon 20000000"),
    "replay/s3_fixed": ("run/s3_multiturn_closed_loop", "--horizon 900000000"),
    "replay/qwen3-14b_H100_tp1_trained_shifted": ("real/real_qwen3_14b_h100_8rps_first400_shifted", ""),
    **{
        f"run/{name}": (f"run/{name}", "")
        for name in (
            "s1_poisson_basic",
            "s2_multiclient_prefix_slo",
            "s4_concurrency",
            "s5_inference_perf",
            "s5b_inference_perf_single",
            "s6_cohort_absolute",
        )
    },
}
"""Return the printed output by file: the trace that gives it, and flags besides the deployment. The trace holds all
that a run of it needs, and its clock begins at the first arrival."""


@pytest.mark.parametrize("case", CASES)
def test_an_instance_is_simulated_to_the_microsecond(
    case: str, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = next(iter((reference / "golden").glob(f"engine*/{case}")))
    flags = shlex.split((folder / "flags.txt").read_text())
    outputs = ["--results-path", str(tmp_path / "results.json"), "--metrics-path", str(tmp_path / "metrics.json")]
    form = ["--engine", "blis", "--format", "blis"]
    assert run(["replay", str(folder / "trace.yaml"), *flags, *form, *outputs]) == 0
    assert_same_files(tmp_path, folder)
    assert_printed(capsys.readouterr().out, folder / "stdout.txt")


@pytest.mark.parametrize("case", REPLAYS)
def test_a_recording_replays_to_the_microsecond(case: str, reference: Path, tmp_path: Path) -> None:
    recording, flags = REPLAYS[case]
    folder = reference / "golden" / "tools"
    header = folder / "real" / f"{recording}.yaml"
    outputs = ["--engine", "blis", "--results-path", str(tmp_path / "results.json")]
    assert run(["replay", str(header), *shlex.split(flags), *outputs]) == 0
    assert read_json(tmp_path / "results.json") == read_json(folder / "replay" / f"{case}.results.json")


@pytest.mark.parametrize("case", PRINTED)
def test_printed_figures_equal_the_reference_to_the_last_digit(
    case: str, reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, flags = PRINTED[case]
    folder = reference / "golden" / "tools"
    form = ["--engine", "blis", "--format", "blis"]
    assert run(["replay", str(folder / f"{trace}.yaml"), *shlex.split(QWEN), *form, *shlex.split(flags)]) == 0
    assert_printed(capsys.readouterr().out, folder / f"{case}.stdout.txt")


def test_goodput_is_the_same_to_the_last_digit(reference: Path, tmp_path: Path) -> None:
    folder = reference / "golden" / "tools" / "run"
    metrics = tmp_path / "metrics.json"
    trace = str(folder / "s2_multiclient_prefix_slo.yaml")
    assert run(["replay", trace, *shlex.split(QWEN), "--engine", "blis", "--metrics-path", str(metrics)]) == 0
    assert metrics.read_text() == (folder / "s2_multiclient_prefix_slo.metrics.json").read_text()
