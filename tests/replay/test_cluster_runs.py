"""The report of runs with several instances."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run

MODEL = ["--model", "qwen/qwen3-14b"]
HEADER = "trace_version: 3\nmode: generated\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = ["request_id,tenant_id,slo_class,input_tokens,output_tokens,arrival_time_us"]
    rows += [f"{number},t,{'batch' if number % 2 else ''},200,20,{number * 1000}" for number in range(12)]
    (tmp_path / "t.yaml").write_text(HEADER)
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "t.yaml"


def replayed(trace: Path, *flags: str) -> Any:
    """The metrics file of a replay."""
    path = trace.parent / "metrics.json"
    assert run(["replay", str(trace), *MODEL, *flags, "--metrics-path", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("scheduling", ["vllm", "blis"])
def test_each_request_names_its_instance(scheduling: str, trace: Path) -> None:
    rows = replayed(trace, "--num-instances", "3", "--engine", scheduling)["requests"]
    assert [row["handled_by"] for row in rows] == [f"instance_{number % 3}" for number in range(12)]


def test_metrics_of_instances_add_up_to_those_of_the_whole(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replayed(trace, "--num-instances", "3", "--json")
    reported = json.loads(capsys.readouterr().out)
    instances = reported["breakdown"]["instances"]
    assert [each["instance_id"] for each in instances] == ["instance_0", "instance_1", "instance_2"]
    for name in ("completed_requests", "injected_requests", "total_input_tokens", "total_output_tokens"):
        assert sum(each[name] for each in instances) == reported[name] > 0
    assert max(each["vllm_estimated_duration_s"] for each in instances) == reported["vllm_estimated_duration_s"]


def test_rejected_requests_are_counted_by_class_and_have_no_row(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = ("--admission-policy", "token-bucket", "--token-bucket-capacity", "1000")
    metrics = replayed(trace, *bucket)
    assert metrics["injected_requests"] == len(metrics["requests"]) == 5
    assert "\nrejected at admission: 4 batch, 3 standard\n" in capsys.readouterr().out
    replayed(trace, *bucket, "--format", "blis")
    printed = capsys.readouterr().out
    assert "Rejected Requests (Admission): 7\n  Shed (batch): 4\n  Shed (standard): 3\n" in printed


EXHAUSTED = ["--engine", "blis", "--prefill-instances", "1", "--decode-instances", "1", "--pd-decider", "always"]
EXHAUSTED += ["--total-kv-blocks", "40"]


def test_requests_dropped_after_their_prompt_have_its_first_token_and_end_when_they_are_dropped(
    trace: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    metrics = replayed(trace, *EXHAUSTED, "--results-path", str(results))
    rows = metrics["requests"]
    dropped = [row for row in rows if not row["itl_ms"]]
    assert len(rows) == len(json.loads(results.read_text())) == 12
    assert metrics["dropped_unservable"] == len(dropped) == 12 - metrics["completed_requests"] > 0
    for row in dropped:
        assert row["e2e_ms"] == row["scheduling_delay_ms"] < row["ttft_ms"]
        assert row["handled_by"] == "instance_1"
    assert metrics["e2e_mean_ms"] == pytest.approx(sum(row["e2e_ms"] for row in rows) / 12)


def test_dropped_requests_count_as_their_tenants_but_not_as_disaggregated(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = replayed(trace, *EXHAUSTED, "--format", "blis")
    printed = capsys.readouterr().out
    assert f"Disaggregated Requests: {metrics['completed_requests']}\nDropped at Decode KV: 0\n" in printed
    assert "  t: requests=12, tokens=240\n" in printed


def test_requests_that_wait_for_their_decode_instance_are_a_blocked_line(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed(trace, *EXHAUSTED[:-1], "1000", "--max-num-seqs", "1", "--num-instances", "4", "--format", "blis")
    assert "HOL Blocking Events: 1\n" in capsys.readouterr().out


def test_decisions_are_written_with_the_best_candidates(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "decisions.json"
    flags = ["--trace-level", "decisions", "--counterfactual-k", "1", "--decisions-path", str(path)]
    replayed(trace, "--num-instances", "2", *flags)
    decisions = json.loads(path.read_text())
    assert [each["instance"] for each in decisions] == ["instance_0", "instance_1"] * 6
    assert decisions[3] == {
        "at_us": 3000,
        "request_id": "request_3",
        "instance": "instance_1",
        "regret": 0.0,
        "candidates": [
            {
                "instance": "instance_1",
                "score": -1.0,
                "num_waiting": 0,
                "num_running": 0,
                "num_in_flight": 1,
                "kv_usage_fraction": 0.0,
            }
        ],
    }


def test_a_summary_of_decisions_is_printed_on_demand(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decisions = ("--num-instances", "2", "--trace-level", "decisions")
    replayed(trace, *decisions, "--summarize-trace", "--format", "blis")
    assert "=== Trace Summary ===\nTotal Decisions: 12\n  Admitted: 12\n" in capsys.readouterr().out
    replayed(trace, *decisions, "--summarize-trace")
    summary = "decisions: 12 admitted, 0 rejected, regret 0.000000 on average, 0.000000 at most\ninstance    requests\n"
    assert f"\n{summary}instance_0         6\ninstance_1         6\n" in capsys.readouterr().out
    replayed(trace, *decisions)
    assert "decisions:" not in capsys.readouterr().out


def test_a_run_with_a_horizon_counts_where_unfinished_requests_are(trace: Path) -> None:
    metrics = replayed(trace, "--num-instances", "2", "--horizon", "30000")
    assert metrics["completed_requests"] == 0
    assert metrics["still_running"] + metrics["still_queued"] > 0
    assert {row["handled_by"] for row in metrics["requests"]} == {"instance_0", "instance_1"}


def test_equal_seeds_give_equal_draws(trace: Path) -> None:
    def handled(seed: str) -> list[str]:
        rows = replayed(trace, "--num-instances", "4", "--routing-policy", "random", "--seed", seed)["requests"]
        return [row["handled_by"] for row in rows]

    assert handled("1") == handled("1") != handled("2")


def test_a_policy_file_makes_a_cluster_of_instances_that_differ(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text("instances: [{count: 1}, {hardware: A100-SXM}]\n")
    rows = replayed(trace, "--policy-config", str(path))["requests"]
    fast, slow = ([row["itl_ms"] for row in rows if row["handled_by"] == f"instance_{number}"] for number in range(2))
    assert max(fast) < min(slow)


def test_averages_over_phases_have_instances(trace: Path) -> None:
    metrics = replayed(trace, "--num-instances", "2", "--phase-average", "2")
    assert metrics["completed_requests"] == 12


def test_workloads_with_conversations_run_on_several_instances(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    flags = ["--concurrency", "6", "--num-requests", "30", "--num-instances", "3", "--metrics-path", str(path)]
    assert run(["run", *MODEL, *flags]) == 0
    assert json.loads(path.read_text())["completed_requests"] == 30


def test_the_longest_lines_are_found(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busiest = ("--num-instances", "3", "--routing-policy", "always-busiest", "--max-num-seqs", "2")
    replayed(trace, *busiest, "--format", "blis")
    assert "HOL Blocking Events: 1\n" in capsys.readouterr().out
    replayed(trace, *busiest)
    assert "\ninstances with a queue more than twice as long as the mean: 1\n" in capsys.readouterr().out


def test_a_line_is_as_long_as_it_is_on_average_however_many_steps_there_are(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On each of three instances one waits for half of the steps, but one instance takes many more steps."""
    rows = ["request_id,input_tokens,output_tokens,arrival_time_us"]
    rows += [f"{number},200,{100 if number % 3 == 1 else 2},0" for number in range(6)]
    trace.with_suffix(".csv").write_text("\n".join(rows) + "\n")
    replayed(trace, "--num-instances", "3", "--max-num-seqs", "1", "--json")
    assert json.loads(capsys.readouterr().out)["breakdown"]["hol_blocking_events"] == 0


HELD = ("--flow-control", "--saturation-detector", "concurrency", "--max-concurrency", "10")
CLASSES = """
version: "2"
seed: 3
aggregate_rate: 60
num_requests: 200
clients:
- {id: a, rate_fraction: 0.5, slo_class: critical, arrival: {process: poisson}, input_distribution: {type: constant,
   params: {value: 300}}, output_distribution: {type: constant, params: {value: 160}}}
- {id: b, rate_fraction: 0.5, slo_class: sheddable, arrival: {process: poisson}, input_distribution: {type: constant,
   params: {value: 301}}, output_distribution: {type: constant, params: {value: 350}}}
"""


@pytest.mark.parametrize(
    ("flags", "others"),
    [
        (("--kill", "1s:1"), {"failed"}),
        ((*HELD, "--in-flight-eviction"), {"evicted"}),
        ((*HELD, "--horizon", "2000000"), {"waiting", "running", "on_the_way"}),
        ((*HELD, "--horizon", "2000000", "--kill", "1s:1", "--in-flight-eviction"), {"running", "failed", "evicted"}),
        ((*HELD, "--max-gateway-queue-depth", "5"), {"rejected"}),
        (("--timeout", "1"), {"timed_out"}),
    ],
)
def test_all_requests_that_arrived_are_counted_by_how_they_ended_or_where_they_are(
    flags: tuple[str, ...], others: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "classes.yaml"
    spec.write_text(CLASSES)
    command = ("run", "--model", "qwen/qwen3-14b", "--num-instances", "2", "--workload-spec", str(spec))
    assert run([*command, *flags, "--format", "report"]) == 0
    counts = json.loads(capsys.readouterr().out)["result"]["requests"]
    assert others <= {name for name, count in counts.items() if count}
    assert counts["arrived"] == sum(counts[name] for name in counts if name not in ("arrived", "length_capped"))
    assert run([*command, *flags]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " arrived, " in line]
    numbers = [int(word.replace(",", "")) for word in line.split() if word[0].isdigit()]
    assert numbers[0] == sum(numbers[1:])
