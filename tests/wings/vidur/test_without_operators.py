"""Command lines of Vidur and SimAI without --operators: its own tables, else a latency model of whole steps."""

import csv
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.latency.operators import MLP_OPERATORS
from tests.wings.vidur.goldens import rows_of

POISSON = (
    "--request_generator_config_type synthetic --interval_generator_config_type poisson "
    "--poisson_request_interval_generator_config_qps 100 --length_generator_config_type fixed "
    "--fixed_request_length_generator_config_prefill_tokens 1024 "
    "--fixed_request_length_generator_config_decode_tokens 10"
)
REPLAY = (
    "--request_generator_config_type trace_replay "
    "--trace_request_generator_config_trace_file ./data/processed_traces/splitwise_conv.csv "
    "--trace_request_generator_config_time_scale_factor 0.5"
)
SMALL = ("--no-metrics_config_store_plots", "--synthetic_request_generator_config_num_requests", "12")
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a trace where Vidur has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    traces = tmp_path / "data" / "processed_traces"
    traces.mkdir(parents=True)
    rows = "".join(f"{number},{500 + number},{5 + number}\n" for number in range(10))
    (traces / "splitwise_conv.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    return tmp_path


def requests_of(words: str, *more: str) -> list[dict[str, str]]:
    """Simulate a command line. Returns the rows of its requests."""
    assert run(["vidur", *words.split(), *SMALL, *more]) == 0
    made = max(Path("simulator_output").iterdir())
    return rows_of(made / "request_metrics.csv")


@pytest.mark.parametrize(
    ("words", "num_requests", "prompt_tokens"), [(POISSON, 12, "1024"), (REPLAY, 10, "500"), ("", 12, "2048")]
)
def test_whole_steps_are_taken_and_one_line_says_of_what(
    words: str, num_requests: int, prompt_tokens: str, capsys: Captured
) -> None:
    rows = requests_of(words)
    assert len(rows) == num_requests
    assert float(rows[0]["request_num_prefill_tokens"]) == float(prompt_tokens)
    assert all(0 < float(row["prefill_e2e_time"]) < float(row["request_e2e_time"]) for row in rows)
    said = [line for line in capsys.readouterr().err.splitlines() if "step times are those of" in line]
    assert len(said) == 1
    assert "there is no folder ./data/profiling" in said[0]


def test_several_stages_share_a_step(capsys: Captured) -> None:
    one, two = (requests_of(REPLAY, "--replica_config_num_pipeline_stages", str(stages)) for stages in (1, 2))
    taken = [float(rows[0]["request_execution_time"]) for rows in (one, two)]
    assert taken[1] == pytest.approx(taken[0], rel=0.01)


def test_prompts_and_decodes_of_separate_replicas_take_their_own_steps() -> None:
    pools = "--global_scheduler_config_type split_wise --replica_scheduler_config_type split_wise"
    pools += " --cluster_config_num_replicas 2 --replica_config_pd_node_ratio 0.5"
    rows = requests_of(f"{POISSON} {pools}")
    assert {row["prefill_replica_id"] for row in rows} != {row["decode_replica_id"] for row in rows}


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_profiling(folder: Path) -> None:
    """Write tables as Vidur has them, in which each operator of a layer takes 10 us whatever the tokens."""
    place = folder / "data" / "profiling" / "compute" / "a100" / "meta-llama" / "Llama-2-7b-hf"
    heads: dict[str, object] = {"n_kv_head": 32, "n_embd": 4096, "num_tensor_parallel_workers": 1}
    mlp = {**heads, "n_head": 32, "n_expanded_embd": 11008}
    times: dict[str, object] = {f"time_stats.{name}.median": 0.01 for name in MLP_OPERATORS}
    write_rows(place / "mlp.csv", [{**mlp, "num_tokens": tokens, **times} for tokens in (1, 4096)])
    zeros: dict[str, object] = {"time_stats.attn_decode.median": 0.0, "time_stats.attn_prefill.median": 0.0}
    sizes = [(size, 0, kv) for size in (1, 128) for kv in (0, 4096)]
    sizes += [(1, chunk, kv) for chunk in (64, 4096) for kv in (0, 4096)]
    names = ("batch_size", "prefill_chunk_size", "kv_cache_size")
    write_rows(
        place / "attention.csv",
        [{**heads, "n_q_head": 32, **zeros, **dict(zip(names, each, strict=True))} for each in sizes],
    )


def test_profiling_tables_in_the_working_folder_are_found(folder: Path, capsys: Captured) -> None:
    write_profiling(folder)
    rows = requests_of(POISSON)
    assert "times of the operators of meta-llama/Llama-2-7b-hf come from ./data/profiling" in capsys.readouterr().err
    alone = min(float(row["prefill_e2e_time"]) for row in rows)
    step_s = 9 * 0.01e-3 * 32
    assert alone == pytest.approx(2 * step_s, rel=0.2), "two chunks of 512 tokens"


def test_profiling_tables_of_another_model_are_passed_over(folder: Path, capsys: Captured) -> None:
    write_profiling(folder)
    requests_of(POISSON, "--replica_config_model_name", "meta-llama/Meta-Llama-3-8B")
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "step times are those of" in line]
    assert "the tables in ./data/profiling do not serve: --operators data/profiling: expected mlp.csv" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--compat vidur", "--compat vidur needs --operators, which is not given, and there is no folder"),
        (
            "--random_forrest_execution_time_predictor_config_backend simai_analytical",
            "_backend simai_analytical needs --operators",
        ),
        (
            "--replica_config_device a40 --replica_config_network_device a40_pairwise_nvlink",
            "--operators must be given: there is no folder ./data/profiling; kernels: GPU 'a40'",
        ),
    ],
)
def test_what_no_latency_model_can_do_is_refused_in_one_line(words: str, problem: str, capsys: Captured) -> None:
    assert run(["vidur", *words.split()]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
