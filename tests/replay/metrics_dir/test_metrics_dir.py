"""`--metrics-dir` of `blis run` and `blis replay`: its files agree with the results of the same run."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from tests.replay.metrics_dir.trace_event_format import problems

WORKLOAD = (
    *("run", "--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1", "--arrival", "poisson"),
    *(
        "--rate",
        "20",
        "--num-requests",
        "40",
        "--output-tokens",
        "60",
        "--output-tokens-stdev",
        "40",
        "--output-tokens-min",
        "2",
    ),
)
SETTINGS = {
    "one instance": (),
    "the engine blis": ("--engine", "blis"),
    "two pipeline stages": ("--pp", "2"),
    "the engine sarathi with two pipeline stages": ("--engine", "sarathi", "--pp", "2"),
    "two instances": ("--num-instances", "2"),
    "separate pools": (
        *("--num-instances", "3", "--prefill-instances", "1", "--decode-instances", "2", "--pd-decider", "always"),
    ),
    "separate pools with the engine blis": (
        *("--num-instances", "2", "--prefill-instances", "1", "--decode-instances", "1", "--pd-decider", "always"),
        *("--engine", "blis"),
    ),
    "drafts": ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
    "preemptions": ("--num-gpu-blocks-override", "160", "--no-scheduler-reserve-full-isl"),
    "kernels": ("--latency-model", "kernels"),
}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests draw none, for pictures take longer than runs."""
    monkeypatch.setattr("replay.metrics_dir.pictures.can_draw", lambda: False)


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def results(folder: Path, *flags: str) -> dict[int, dict[str, Any]]:
    """Run the workload with a folder of metrics, and return its results by request."""
    arguments = (*WORKLOAD, *flags, "--metrics-dir", str(folder / "m"), "--results-path", str(folder / "r.json"))
    assert run([*arguments, "--json"]) == 0
    return {each["request_id"]: each for each in json.loads((folder / "r.json").read_text())}


@pytest.mark.parametrize("flags", SETTINGS.values(), ids=SETTINGS.keys())
def test_requests_and_batches_agree_with_the_results(tmp_path: Path, flags: tuple[str, ...]) -> None:
    expected = results(tmp_path, *flags)
    folder = tmp_path / "m"
    requests = {int(each["Request Id"]): each for each in rows(folder / "request_metrics.csv")}
    assert len(requests) == len(expected) == 40
    for number, each in expected.items():
        row = requests[number]
        assert float(row["request_e2e_time"]) == pytest.approx(each["e2e_us"] / 1e6, abs=1e-9)
        assert float(row["prefill_e2e_time"]) == pytest.approx(each["ttft_us"] / 1e6, abs=1e-9)
        assert float(row["tbt"]) == pytest.approx(each["itl_mean_us"] / 1e6, abs=1e-9)
        both = float(row["request_execution_plus_preemption_time"]) + float(row["request_scheduling_delay"])
        overcounted = 1.0 if "--engine" in flags and "--num-instances" in flags else 1e-9  # BLIS leaves a token out
        assert 0 < both <= float(row["request_e2e_time"]) + overcounted
    batches = rows(folder / "batch_metrics.csv")
    prompt_tokens = sum(int(each["batch_num_prefill_tokens"]) for each in batches)
    assert prompt_tokens >= sum(int(each["request_num_prefill_tokens"]) for each in requests.values())
    assert json.loads((folder / "config.json").read_text())["options"]["num_requests"] == 40


@pytest.mark.parametrize("flags", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_timelines_are_valid_and_have_every_request(tmp_path: Path, flags: tuple[str, ...]) -> None:
    results(tmp_path, *flags)
    trace = json.loads((tmp_path / "m" / "chrome_trace.json").read_text())
    assert problems(trace) == []
    ids = {each["id"] for each in trace["traceEvents"] if each["ph"] == "b"}
    assert ids == set(range(40))
    events = json.loads((tmp_path / "m" / "event_trace.json").read_text())
    times = [each["time"] for each in events]
    assert times == sorted(times)
    for event_type in ("request_arrival", "request_end"):
        assert {each["request_id"] for each in events if each["event_type"] == event_type} == set(range(40))


def test_a_folder_of_metrics_changes_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*WORKLOAD, "--json"]) == 0
    expected = capsys.readouterr().out
    results(tmp_path)
    assert capsys.readouterr().out == expected


def test_a_pool_of_prompts_and_one_of_answers_show_in_the_rows_of_requests(tmp_path: Path) -> None:
    results(tmp_path, *SETTINGS["separate pools"])
    found = rows(tmp_path / "m" / "request_metrics.csv")
    assert len(found) == 40
    for row in found:
        assert (row["prefill_replica_id"], row["decode_replica_id"] in ("1", "2")) == ("0", True)
        assert float(row["arrived_at"]) < float(row["decode_arrived_at"]) < float(row["completed_at"])
        rate = float(row["pd_p2p_comm_size"]) / float(row["pd_p2p_comm_time"])
        assert rate == pytest.approx(float(row["pd_p2p_comm_bandwidth"]))


def test_operations_add_up_to_the_time_of_a_batch_but_for_a_tenth_that_heat_of_earlier_prompts_adds(
    tmp_path: Path,
) -> None:
    results(tmp_path, *SETTINGS["kernels"])
    batches, operations = (rows(tmp_path / "m" / f"{name}_metrics.csv") for name in ("batch", "operation"))
    assert len(batches) == len(operations) > 100
    for batch, each in zip(batches, operations, strict=True):
        total_ms = sum(float(value) for name, value in each.items() if name != "Batch Id")
        measured_ms = float(batch["batch_execution_time"]) * 1e3
        assert 0.9 * measured_ms < total_ms < measured_ms + 0.002  # times are whole microseconds


def test_a_request_that_has_not_ended_at_the_horizon_has_a_row_without_an_end(tmp_path: Path) -> None:
    expected = results(tmp_path, "--horizon", "1000000")
    requests = rows(tmp_path / "m" / "request_metrics.csv")
    ended = {int(each["Request Id"]) for each in requests if each["completed_at"]}
    assert ended == set(expected)
    assert 0 < len(ended) < len(requests) < 40


def test_a_rejected_request_has_a_row_and_no_batch(tmp_path: Path) -> None:
    flags = ("--admission-policy", "reject-all", "--num-instances", "2")
    assert results(tmp_path, *flags) == {}
    requests = rows(tmp_path / "m" / "request_metrics.csv")
    assert [each["scheduled_at"] for each in requests] == [""] * 40
    assert rows(tmp_path / "m" / "batch_metrics.csv") == []


def test_a_replay_writes_the_same_folder_as_the_run_that_it_repeats(tmp_path: Path) -> None:
    results(tmp_path, "--trace-output", str(tmp_path / "t"))
    replayed = tmp_path / "replayed"
    deployment = ("--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1")
    assert run(["replay", str(tmp_path / "t.yaml"), *deployment, "--metrics-dir", str(replayed)]) == 0
    for name in ("request_metrics.csv", "batch_metrics.csv", "chrome_trace.json", "utilization.json"):
        assert (replayed / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


def test_a_folder_with_other_files_is_refused_and_one_of_an_earlier_run_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    flags = [*WORKLOAD, "--metrics-dir", str(folder)]
    assert run(flags) == 2
    assert "--metrics-dir must be a new or an empty folder" in capsys.readouterr().err
    (folder / "config.json").unlink()
    assert run(flags) == 0
    assert run(flags) == 0
    assert run([*WORKLOAD, "--metrics-dir", str(folder / "config.json")]) == 2
    assert "must be a folder" in capsys.readouterr().err


def test_averages_over_phases_have_no_folder_of_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--model", "qwen/qwen3-14b", "--phase-average", "2", "--metrics-dir", str(tmp_path / "m"))
    assert run(["replay", "trace.yaml", *flags]) == 2
    assert "--phase-average cannot be used with --metrics-dir" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["vllm", "blis"])
@pytest.mark.parametrize("timeout_us", [20_000, 60_000])
def test_clients_that_give_up_during_a_step_are_in_no_batch_that_ends_later(
    timeout_us: int, engine: str, tmp_path: Path
) -> None:
    """During the step of their prompt, or of a token."""
    spec, folder = tmp_path / "hasty.yaml", tmp_path / "metrics"
    lengths = "{type: constant, params: {value: 500}}"
    spec.write_text(
        "version: '2'\naggregate_rate: 2\nnum_requests: 6\nclients:\n"
        f"- {{id: a, rate_fraction: 1, timeout: {timeout_us}, arrival: {{process: constant}}, "
        f"input_distribution: {lengths}, output_distribution: {lengths}}}\n"
    )
    command = ["run", "--model", "qwen/qwen3-14b", "--engine", engine, "--workload-spec", str(spec), "--json"]
    assert run([*command, "--metrics-dir", str(folder)]) == 0
    found = rows(folder / "request_metrics.csv")
    assert len(found) == 6
    assert {row["request_e2e_time"] for row in found} == {""}
    assert len(rows(folder / "batch_metrics.csv")) >= 6
