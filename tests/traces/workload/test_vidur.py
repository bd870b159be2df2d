"""Vidur's synthetic workloads: the requests that Vidur itself generated from the same settings and seed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_sim.cli.main import run
from observe.requests import plan_from_requests
from traces import TraceError, read_trace
from traces.table import Column, read_table
from traces.workload.generate import generate
from traces.workload.request import Workload
from traces.workload.spec import parse_spec, read_spec

FIXED = {"type": "fixed"}
STATIC = {"type": "static"}
COLUMNS = (
    Column("arrived_at", float, required=True),
    Column("num_prefill_tokens", int, required=True),
    Column("num_decode_tokens", int, required=True),
)
GOLDENS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "7ba_syn_poisson_fixed": (
        {"type": "poisson", "qps": 2},
        {"type": "fixed", "prefill_tokens": 700, "decode_tokens": 50},
    ),
    "7ba_syn_poisson_uniform": (
        {"type": "poisson", "qps": 2},
        {"type": "uniform", "min_tokens": 512, "max_tokens": 2048, "prefill_to_decode_ratio": 10},
    ),
    "7ba_syn_gamma_zipf": (
        {"type": "gamma", "qps": 2, "cv": 2},
        {"type": "zipf", "min_tokens": 512, "max_tokens": 2048},
    ),
    "7ba_syn_static_tracelen": (STATIC, {"type": "trace", "max_tokens": 2048}),
}


def text(interval: dict[str, Any], length: dict[str, Any], **more: Any) -> str:
    given = {"version": "2", "seed": 42, "num_requests": 100, **more}
    return yaml.safe_dump({**given, "vidur": {"interval": interval, "length": length}})


def made(interval: dict[str, Any], length: dict[str, Any], **more: Any) -> Workload:
    return generate(parse_spec(text(interval, length, **more), "spec.yaml"))


@pytest.mark.parametrize("name", GOLDENS)
def test_equal_seeds_give_the_requests_that_vidur_generates(name: str, reference: Path) -> None:
    interval, length = GOLDENS[name]
    if length["type"] == "trace":
        length = {**length, "trace_file": str(reference / "golden/vidur-data/traces/splitwise_conv_1000.csv")}
    theirs = read_table(reference / "golden" / "vidur" / name / "requests.csv", COLUMNS).columns
    ours = made(interval, length).requests
    assert [each.input_tokens for each in ours] == theirs["num_prefill_tokens"]
    assert [each.output_tokens for each in ours] == theirs["num_decode_tokens"]
    assert [each.arrival_us for each in ours] == [round(at_s * 1e6) for at_s in theirs["arrived_at"]]


def test_intervals_of_a_trace_are_in_whole_seconds_and_scaled(tmp_path: Path) -> None:
    times = ["1970-01-04 11:59:59", "1970-01-04 12:00:00.5", "1970-01-04 12:00:02.2", "1970-01-04 12:00:05"]
    path = tmp_path / "times.csv"
    path.write_text("arrival_time\n" + "\n".join(times) + "\n")
    interval = {"type": "trace", "trace_file": str(path), "time_scale_factor": 0.5}
    given = {"start_time": "1970-01-04 12:00:00", "end_time": "1970-01-04 15:00:00"}
    assert [each.arrival_us for each in made({**interval, **given}, FIXED).requests] == [500_000, 2_000_000]
    assert len(made(interval, FIXED, num_requests=0).requests) == 3


def test_a_horizon_ends_a_workload() -> None:
    requests = made({"type": "poisson", "qps": 5}, FIXED, num_requests=0, horizon=10_000_000).requests
    assert requests[-1].arrival_us <= 10_000_000
    assert 30 <= len(requests) <= 80
    assert {(each.input_tokens, each.output_tokens) for each in requests} == {(2048, 512)}


def test_a_trace_of_lengths_that_runs_out_ends_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n10,1\n6000,2000\n0,3\n")
    lengths = made(STATIC, {"type": "trace", "trace_file": str(path)}).requests
    assert sorted((each.input_tokens, each.output_tokens) for each in lengths) == [(1, 3), (10, 1), (3072, 1024)]


def test_a_generator_of_vidur_is_run_and_written_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text({"type": "poisson", "qps": 5}, {"type": "uniform"}, num_requests=20))
    prefix = tmp_path / "out"
    command = ["run", "--model", "qwen/qwen3-14b", "--workload-spec", str(path), "--trace-output", str(prefix)]
    assert run(command) == 0
    rows = read_trace(f"{prefix}.yaml").rows
    planned = plan_from_requests(generate(read_spec(path)).requests)
    assert [(row.arrival_time_us, row.input_tokens, row.output_tokens) for row in rows] == [
        (each.at_us, each.input_tokens, each.output_tokens) for each in planned
    ]


@pytest.mark.parametrize(
    ("interval", "length", "more", "message"),
    [
        ({"type": "static", "qps": 1}, FIXED, {}, "key vidur.interval.qps: expected no other key with static, got qps"),
        ({"type": "poisson", "cv": 2}, FIXED, {}, "key vidur.interval.cv: expected qps with poisson, got cv"),
        ({"type": "poisson", "qps": 1e-300}, FIXED, {}, "key vidur.interval.qps: expected a number between 1e-9 and"),
        ({"type": "poisson", "qps": 1e-9}, FIXED, {"num_requests": 99}, "requests later than 9e+15 us: give it fewer"),
        ({"type": "weibull"}, FIXED, {}, "key vidur.interval.type: expected "),
        (STATIC, {"type": "trace"}, {}, "key vidur.length.trace_file: expected the path of a CSV file"),
        (STATIC, {"type": "zipf", "theta": 1}, {}, "key vidur.length.theta: expected a number other than 1, got 1"),
        (STATIC, {"type": "uniform", "max_tokens": 5}, {}, "key vidur.length.min_tokens: expected at most max_tokens"),
        (STATIC, FIXED, {"inference_perf": None, "clients": [{"id": "a"}]}, "clients"),
        ({"type": "poisson"}, FIXED, {"num_requests": 0}, "the workload never ends"),
        (STATIC, FIXED, {"num_requests": 0, "horizon": 9}, "the workload never ends"),
        (STATIC, {"type": "trace", "trace_file": "none.csv"}, {}, "none.csv: no such file"),
        ({"type": "trace", "trace_file": "none.csv", "start_time": "noon"}, FIXED, {}, "expected a time like 1970"),
    ],
)
def test_mistakes_are_named(
    interval: dict[str, Any], length: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        made(interval, length, **more)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "run --model qwen/qwen3-14b --trace-output lengths",
        "observe --url http://localhost:1 --num-requests 1 -o lengths",
    ],
)
def test_the_file_of_lengths_is_not_written_over(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text("request_id,input_tokens\n")
    Path("w.yaml").write_text(text(STATIC, {"type": "trace", "trace_file": "lengths.csv"}))
    assert run([*command.split(), "--workload-spec", "w.yaml"]) == 2
    assert "would write over lengths.csv, which belongs to what is read" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lengths.csv", "w.yaml"]
    assert Path("lengths.csv").read_text() == "request_id,input_tokens\n"
