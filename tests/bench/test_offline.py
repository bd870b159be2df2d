import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench import latency_command, throughput_command
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from blis_sim.options import BlisError, options_from
from tests.bench.no_server import NoServer

MODEL: dict[str, Any] = {"model": "qwen/qwen3-14b", "hardware": "H100", "tp": 1}


def throughput_of(tmp_path: Path, **options: Any) -> dict[str, Any]:
    given = {"num_prompts": 50, "input_len": 200, "output_len": 20, "output_json": str(tmp_path / "out.json")}
    assert throughput_command.run(options_from(throughput_command.ThroughputOptions, **(MODEL | given | options))) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return found


def latency_of(tmp_path: Path, **options: Any) -> dict[str, Any]:
    given = {"num_iters_warmup": 1, "num_iters": 3, "output_json": str(tmp_path / "out.json")}
    assert latency_command.run(options_from(latency_command.LatencyOptions, **(MODEL | given | options))) == 0
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return found


def test_throughput_is_what_was_asked_for_over_the_time_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = throughput_of(tmp_path)
    elapsed_s = found["elapsed_time"]
    assert list(found) == [
        "model_id", "elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"
    ]  # fmt: skip
    assert (found["num_requests"], found["total_num_tokens"]) == (50, 50 * 220)
    assert found["requests_per_second"] == pytest.approx(50 / elapsed_s)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        f"Throughput: {50 / elapsed_s:.2f} requests/s, {11_000 / elapsed_s:.2f} total tokens/s,"
        f" {1000 / elapsed_s:.2f} output tokens/s"
    )
    assert printed[1:3] == ["Total num prompt tokens:  10000", "Total num output tokens:  1000"]
    assert printed[3:] == ["load: all requests at once, prompts of 200 and outputs of 20 tokens (means)"]


def test_a_shared_prefix_is_computed_once(tmp_path: Path) -> None:
    alone = throughput_of(tmp_path, input_len=1600)
    shared = throughput_of(tmp_path, input_len=16, random_prefix_len=1584)
    assert shared["total_num_tokens"] == alone["total_num_tokens"]
    assert shared["elapsed_time"] < alone["elapsed_time"] / 2


def test_learned_step_times_need_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped, named = (
        throughput_of(tmp_path, latency_model="fitted", coefficients=file) for file in (None, str(LEARNED_COEFFICIENTS))
    )
    assert shipped == named != throughput_of(tmp_path, latency_model="trained-physics")
    assert capsys.readouterr().err == ""
    latency_of(tmp_path, latency_model="fitted", hardware="L40S")
    said = capsys.readouterr().err
    assert said.startswith("blis bench latency: warning: the shipped coefficients were learned for qwen3-14b on H100 ")
    assert said.count("\n") == 1


def test_warm_up_requests_do_not_count(tmp_path: Path) -> None:
    cold, warm = throughput_of(tmp_path), throughput_of(tmp_path, num_warmups=5)
    assert warm["num_requests"] == 50
    assert warm["elapsed_time"] == pytest.approx(cold["elapsed_time"], rel=0.02)


def test_a_warm_up_fills_the_prefix_cache(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_prompts": 1, "input_len": 16, "random_prefix_len": 4000, "output_len": 1}
    cold, warm = throughput_of(tmp_path, **settings), throughput_of(tmp_path, **settings, num_warmups=1)
    assert warm["elapsed_time"] < cold["elapsed_time"] / 2


def test_a_batch_takes_the_same_time_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = latency_of(tmp_path)
    assert len(found["latencies"]) == 3
    assert len(set(found["latencies"])) == 1
    assert list(found["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"Avg latency: {found['avg_latency']} seconds"
    assert printed[6] == f"99% percentile latency: {found['percentiles']['99']} seconds"
    assert printed[7].startswith("load: all requests at once, prompts of ")


def test_with_a_prefix_cache_only_the_first_batch_computes_its_prompts(tmp_path: Path) -> None:
    found = latency_of(tmp_path, input_len=1024, num_iters_warmup=0, enable_prefix_caching=True)
    first, second, third = found["latencies"]
    assert second == third
    assert second < first


def test_larger_batches_take_longer_but_not_in_proportion(tmp_path: Path) -> None:
    small, large = (latency_of(tmp_path, batch_size=size)["avg_latency"] for size in (1, 64))
    assert small < large < 64 * small


def test_flags_of_vllm_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "m", "--backend", "vllm", "--max_num_batched_tokens", "8k", "--dtype", "auto"]
    assert throughput_command.rewritten(given) == [
        "--model",
        "m",
        "--max-num-batched-tokens",
        "8000",
        "--dtype",
        "auto",
    ]
    assert capsys.readouterr().err == "blis bench throughput: without effect: --backend\n"
    assert latency_command.rewritten(["--model", "m", "--batch-size", "4", "--enforce-eager"]) == [
        "--model",
        "m",
        "--batch-size",
        "4",
        "--enforce-eager",
    ]


def test_a_benchmark_that_cannot_be_computed_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match=r"a request of 200000 \+ 20 tokens is above the longest context"):
        throughput_of(tmp_path, input_len=200_000)
    with pytest.raises(BlisError, match="--output-json must be in a folder that exists"):
        latency_of(tmp_path, output_json=str(tmp_path / "none" / "out.json"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    with pytest.raises(BlisError, match=r"--output-json would write over .*prompts\.jsonl, which --dataset-path reads"):
        throughput_of(tmp_path, dataset_name="custom", dataset_path=str(prompts), output_json=str(prompts))


@pytest.mark.parametrize("figures_of", [throughput_of, latency_of])
def test_results_are_written_although_standard_output_is_closed(
    figures_of: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", NoServer())
    with pytest.raises(BrokenPipeError):
        figures_of(tmp_path)
    assert json.loads((tmp_path / "out.json").read_text())["model_id"] == "qwen/qwen3-14b"
