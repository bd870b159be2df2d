"""The origin of a result: a command line that reproduces the result, and hashes of the input files."""

import hashlib
import json
import shlex
from pathlib import Path

import pytest

from blis_sim.bench.watch_options import WatchOptions
from blis_sim.cli.main import run
from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.provenance import Provenance, command_line, input_hashes
from replay.run_command import RunOptions

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "qwen3-14b"),
        ("--model", "qwen3-14b", "--no-async-scheduling", "--rate", "2.5", "--detectors", "composite,threshold"),
        ("--model", "qwen3-14b", "--slo-ttft", "default=1s,batch=2s", "--seed", "7", "--num-instances", "3"),
    ],
)
def test_the_command_line_gives_equal_options(flags: tuple[str, ...]) -> None:
    options = options_from(RunOptions, **parse_command_line(RunOptions, flags).values)
    program, command, *words = shlex.split(command_line("blis run", options))
    assert (program, command) == ("blis", "run")
    assert options_from(RunOptions, **parse_command_line(RunOptions, words).values) == options


def test_a_query_of_a_url_is_in_no_origin() -> None:
    words = ("--url", "http://host:9090/metrics?key=abc", "--model", "qwen3-14b")
    options = options_from(WatchOptions, **parse_command_line(WatchOptions, words).values)
    assert command_line("blis calibrate", options) == "blis calibrate --model qwen3-14b --url http://host:9090/metrics"


def test_files_that_are_read_have_their_hash_and_written_ones_have_none(tmp_path: Path) -> None:
    spec, written = tmp_path / "spec.yaml", tmp_path / "metrics.json"
    spec.write_text("version: '2'\n")
    written.write_text('{"completed_requests": 1}')
    options = options_from(RunOptions, model="qwen3-14b", workload_spec=str(spec), metrics_path=str(written))
    digest = hashlib.sha256(spec.read_bytes()).hexdigest()
    assert input_hashes(options) == {str(spec): digest}
    assert input_hashes(options, [tmp_path / "missing"]) == {str(spec): digest}


def test_a_replay_states_the_hashes_of_header_and_rows(tmp_path: Path, capsys: Captured) -> None:
    base = ["--model", "qwen3-14b"]
    assert run(["run", *base, "--num-requests", "5", "--trace-output", str(tmp_path / "trace")]) == 0
    path = tmp_path / "origin.json"
    assert run(["replay", str(tmp_path / "trace.yaml"), *base, "--provenance", str(path)]) == 0
    capsys.readouterr()
    origin = json.loads(path.read_text())
    assert [Path(name).name for name in origin["inputs"]] == ["trace.csv", "trace.yaml"]
    assert (origin["gpu"], origin["latency_model"], origin["sureness"]["unlike"]) == ("H100", "fitted", [])
    assert run(["replay", str(tmp_path / "trace.yaml"), *base, "--format", "report"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["provenance"]["inputs"] == origin["inputs"]
    assert report["metrics"]["completed_requests"] == report["result"]["requests"]["completed"] == 5


def test_the_title_names_the_deployment_and_its_expected_error() -> None:
    known = {"gpu": "H100", "gpus_per_instance": 2, "instances": 3, "engine": "vllm", "latency_model": "kernels"}
    sureness = {"summary": "median error TTFT 5.0 %"}
    origin = Provenance(command="blis run", model="m", sureness=sureness, **known)  # type: ignore[arg-type]
    assert origin.title == "m on 3 instances of 2 x H100, vllm engine, kernels step times (median error TTFT 5.0 %)"
    assert Provenance(command="c", model="m").title == "m"
