"""Operators from Vidur's profiling tables: reading, learning and caching."""

import csv
import gzip
import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import pytest

from blis_sim.cli.main import run
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.operators import METHODS, MLP_OPERATORS, Samples, grid_of, monotone
from blis_sim.installation import install_command

SIZES = {"n_head": 64, "n_kv_head": 8, "n_embd": 8192, "n_expanded_embd": 28672, "num_tensor_parallel_workers": 2}
TOKENS = (1, 8, 64, 512, 4096)
MODEL = "meta-llama/Llama-2-70b-hf"


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write tables in which every operator takes a microsecond for each token, and attention for each pair."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = tmp_path / "profiles"
    made.mkdir()
    mlp: list[dict[str, object]] = [
        {**SIZES, "num_tokens": tokens, **{f"time_stats.{name}.median": tokens / 1e3 for name in MLP_OPERATORS}}
        for tokens in TOKENS
    ]
    mlp.append({**mlp[0], "num_tensor_parallel_workers": 4, "num_tokens": 2})
    write_rows(made / "mlp.csv", mlp)
    (made / "mlp.csv.gz").write_bytes(gzip.compress((made / "mlp.csv").read_bytes()))
    (made / "mlp.csv").unlink()
    own = {"n_q_head": 64, "n_kv_head": 8, "n_embd": 8192, "num_tensor_parallel_workers": 2}
    blank = {"time_stats.attn_decode.median": "", "time_stats.attn_prefill.median": ""}
    attention: list[dict[str, object]] = []
    for kv in (0, 1000, 4000):
        for size in (1, 8, 64):
            cells = {**blank, "time_stats.attn_decode.median": size * kv / 1e6}
            attention.append({**own, **cells, "batch_size": size, "prefill_chunk_size": 0, "kv_cache_size": kv})
        for chunk in (64, 512, 4096):
            if chunk + kv <= 4096:
                cells = {**blank, "time_stats.attn_prefill.median": chunk * (kv + chunk / 2) / 1e8}
                attention.append({**own, **cells, "batch_size": 1, "prefill_chunk_size": chunk, "kv_cache_size": kv})
    write_rows(made / "attention.csv", attention)
    exchanges: list[dict[str, object]] = [
        {"size": 2**power, "num_workers": 2, "devices_per_node": 2, "time_stats.all_reduce.median": 2**power / 1e8}
        for power in range(12, 28, 5)
    ]
    write_rows(made / "all_reduce.csv", exchanges)
    return made


def latency(source: str) -> LatencyModel:
    options = DeploymentOptions(model=MODEL, hardware="A100", tp=2, latency_model="operators", operators=source)
    return resolve(options).latency


def test_the_operators_of_a_folder_add_up_to_a_step(folder: Path) -> None:
    model = latency(str(folder))
    linear_ms = 9 * 64 / 1e3
    exchange_ms = 2 * (64 * 8192 * 2 / 1e8 + 0.02)
    decode_ms = 64 * 1000 / 1e6 * 1.1
    found_us = model.step_time(BatchShape(0, 0, 0, 0, 0, 0, 64, 64 * 999))
    assert found_us == pytest.approx(80 * (linear_ms + exchange_ms + decode_ms) * 1e3, rel=1e-4)


def test_a_prompt_beyond_the_measured_contexts_takes_ever_longer(folder: Path) -> None:
    model = latency(str(folder))
    times = [model.step_time(BatchShape(1, 512, 512**2, kv, 512 * kv, 0)) for kv in (0, 1000, 3000, 4000, 9000)]
    assert times == sorted(times)
    assert times[-1] > times[-2] > times[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["polynomial", "forest"])
def test_other_methods_come_close_and_are_learned_once(
    folder: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "forest":
        if importlib.util.find_spec("sklearn") is None:
            pytest.skip("scikit-learn is not installed")
        monkeypatch.setattr("blis_sim.engine.latency.operators._TREES", 5)
        monkeypatch.setattr("blis_sim.engine.latency.operators._TREES_OF_SEARCH", 2)
    shape = BatchShape(1, 512, 512**2, 0, 0, 512**2)
    learned = latency(f"{method}:{folder}").step_time(shape)
    assert learned == pytest.approx(latency(str(folder)).step_time(shape), rel=0.35)
    monkeypatch.setattr("blis_sim.engine.latency.operators.METHODS", {})
    assert latency(f"{method}:{folder}").step_time(shape) == learned


def test_learning_shows_its_progress_on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    latency(f"polynomial:{folder}")
    assert "learning operators (polynomial)" in terminal.getvalue()
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    latency(f"polynomial:{folder}")
    assert terminal.getvalue() == ""


def test_the_error_of_a_forest_without_scikit_learn_names_the_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    with pytest.raises(EngineError, match=re.escape(install_command("operators"))):
        latency(f"forest:{folder}")


def test_the_cpu_adds_to_every_step_where_it_was_measured(folder: Path) -> None:
    shape = BatchShape(0, 0, 0, 0, 0, 0, 16, 16_000)
    before_us = latency(str(folder)).step_time(shape)
    names = ("schedule_median", "sampler_e2e_median", "prepare_inputs_e2e_median", "process_model_outputs_median")
    rows: list[dict[str, object]] = [
        {
            "model_name": MODEL,
            "tensor_parallel_degree": 2,
            "batch_size": size,
            "ray_comm_time_mean": 0.5,
            **dict.fromkeys(names, size / 100),
        }
        for size in (8, 24)
    ]
    write_rows(folder / "cpu_overheads.csv", rows)
    after = latency(str(folder))
    assert after.step_time(shape) - before_us == pytest.approx((4 * 0.16 + 0.5) * 1e3, abs=1)
    assert after.decode_times(shape, 2)[0] == after.step_time(shape)


def test_what_the_tables_do_not_hold_is_named_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", MODEL, "--hardware", "A100", "--tp", "2", "--latency-model", "operators")
    lengths = ("--prompt-tokens", "6000", "--prompt-tokens-stdev", "0", "--num-requests", "3")
    assert run(["run", *flags, "--operators", str(folder), *lengths, "--max-model-len", "8000"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "outside the tables" in line]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("mlp.csv.gz", None, "expected mlp.csv or mlp.csv.gz"),
        ("attention.csv", "n_q_head\n1\n", "attention.csv: expected rows with n_q_head 64"),
        ("all_reduce.csv", "num_workers,devices_per_node\n8,8\n", "all_reduce.csv: expected rows with num_workers 2"),
    ],
)
def test_a_table_that_is_not_there_or_of_another_model_is_named(
    folder: Path, name: str, change: str | None, problem: str
) -> None:
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(change)
    with pytest.raises(EngineError, match=problem):
        latency(str(folder))


def test_the_closest_values_that_never_fall_average_neighbours_in_the_wrong_order() -> None:
    values = np.array([1.0, 3.0, 2.0, 2.0, 5.0, 4.0])
    assert monotone(values, np.ones(6)) == pytest.approx([1.0, 7 / 3, 7 / 3, 7 / 3, 4.5, 4.5])


def test_gaps_of_a_grid_follow_the_slope_of_their_row_or_of_the_row_before() -> None:
    samples = Samples()
    for row, column, time_ms in ((2, 0, 2.0), (2, 10, 4.0), (4, 0, 5.0)):
        samples.add((row, column), time_ms)
    samples.add((2, 20), 6.0)
    grid = grid_of(samples)
    assert grid.at(2, 20) == 6.0
    assert grid.at(4, 20) == pytest.approx(5.0 + 0.1 * 4 * 20)


def test_interpolation_of_a_held_out_quarter_of_measured_operators_is_within_two_percent(shared: Path) -> None:
    from workshop.operators_held_out import held_out_errors

    path = shared / "golden" / "vidur-data" / "compute" / "a100" / "meta-llama" / "Llama-2-70b-hf" / "mlp.csv.gz"
    rows = list(csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines()))
    assert set(METHODS) == {"interpolation", "forest", "polynomial"}
    assert float(np.median(np.concatenate(held_out_errors(rows, "interpolation")))) < 0.02


def test_a_run_of_vidur_takes_the_tables_of_a_folder_and_of_the_cpu_where_requested(
    folder: Path, tmp_path: Path
) -> None:
    requests = tmp_path / "requests.csv"
    requests.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,64,2\n")

    def latencies_s(*more: str) -> tuple[float, float]:
        words = ["vidur", "--replica_config_model_name", MODEL, "--replica_config_tensor_parallel_size", "2"]
        words += ["--request_generator_config_type", "trace_replay", "--no-metrics_config_store_plots"]
        words += ["--trace_request_generator_config_trace_file", str(requests), "--operators", str(folder)]
        assert run([*words, "--metrics_config_output_dir", str(tmp_path / "out"), *more]) == 0
        with (max((tmp_path / "out").iterdir()) / "request_metrics.csv").open() as file:
            (row,) = csv.DictReader(file)
        return float(row["prefill_e2e_time"]), float(row["request_e2e_time"])

    exchange_ms = 64 * 2 * SIZES["n_embd"] / 1e8 + 0.02
    prompt_s = 80 * (9 * 0.064 + 64 * 32 / 1e8 + 2 * exchange_ms) / 1000
    without = latencies_s()
    assert without[0] == pytest.approx(prompt_s, rel=0.01)
    overheads: list[dict[str, object]] = [
        {"model_name": MODEL, "tensor_parallel_degree": 2, "batch_size": size, "schedule_median": 3.0}
        for size in (1, 128)
    ]
    write_rows(folder / "cpu_overheads.csv", overheads)
    assert latencies_s() == without
    flag = "--no-random_forrest_execution_time_predictor_config_skip_cpu_overhead_modeling"
    assert latencies_s(flag) == pytest.approx((without[0] + 0.003, without[1] + 0.006))
