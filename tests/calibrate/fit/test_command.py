"""`blis fit`: from files to a file that serve, run and replay take."""

import json
from pathlib import Path

import pytest
import yaml

from blis_sim.cli.main import run
from blis_sim.engine.latency.coefficients_file import read_coefficients
from tests.capped import capped_rows
from tests.coefficients_file import written as written_coefficients
from tests.replay.small_traces import row
from tests.replay.small_traces import written as written_trace

SERVER = ("--model", "qwen3-14b", "--hardware", "H100", "--tp", "1")
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def trace(tmp_path: Path, capsys: Captured) -> Path:
    """A trace that the engine itself has made with known coefficients."""
    known = written_coefficients(tmp_path)
    fitted = ("--engine", "vllm", "--latency-model", "fitted", "--coefficients", str(known))
    load = ("--rate", "3", "--arrival", "poisson", "--num-requests", "80", "--output-tokens", "60")
    lengths = ("--output-tokens-stdev", "20", "--trace-output", str(tmp_path / "trace"))
    assert run(["run", *SERVER, *fitted, *load, *lengths]) == 0
    capsys.readouterr()
    return tmp_path / "trace.yaml"


def test_learned_coefficients_are_printed_written_and_can_be_replayed(trace: Path, capsys: Captured) -> None:
    output = trace.with_name("learned.yaml")
    assert run(["fit", str(trace), *SERVER, "--check", "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert said.out.split()[:4] == ["coefficient", "learned", "+-", "expected"]
    missing = said.out.partition("not identified")[2]
    assert " prompts of 4,000 tokens and more" in missing  # attention: all prompts are of one length
    assert "idle_start_us" not in missing  # some of these requests found an idle server
    assert said.err.endswith(f"blis fit: wrote {output}\n")
    content = yaml.safe_load(output.read_text())
    assert [row[-1] for row in content["correlation"]] == [1.0] * len(content["spread"])
    assert content["learned_for"] == {"model": "qwen3-14b", "hardware": "H100", "tp": 1}
    assert content["recordings"][0]["requests"] == 80
    assert content["held_out"][0]["requests"] == 16
    assert content["held_out"][0]["e2e"]["mape"] < 0.03
    assert content["seen"]["decode_requests"] >= read_coefficients(output).seen["decode_requests"] > 0
    fitted = ("--engine", "vllm", "--latency-model", "fitted", "--coefficients", str(output))
    assert run(["replay", str(trace), *SERVER, *fitted, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed_requests"] == 80


@pytest.mark.slow
def test_several_recordings_are_learned_from_together(trace: Path, capsys: Captured) -> None:
    output = trace.with_name("learned.yaml")
    assert run(["fit", str(trace), str(trace), *SERVER, "-o", str(output)]) == 0
    capsys.readouterr()
    assert len(yaml.safe_load(output.read_text())["recordings"]) == 2


def refused(capsys: Captured, *arguments: str) -> str:
    assert run(["fit", *arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    return said.err.removeprefix("blis fit: error: ").strip()


def test_settings_that_make_no_sense_are_refused(trace: Path, capsys: Captured) -> None:
    assert refused(capsys, *SERVER) == "give the header files of the recordings, as in `blis fit trace.yaml`"
    assert refused(capsys, str(trace), *SERVER, "--engine", "blis").startswith("--engine must be one of vllm")
    message = refused(capsys, str(trace), *SERVER, "--latency-model", "roofline")
    assert message == "--latency-model must be one of fitted, kernels, got 'roofline'"
    assert refused(capsys, str(trace), *SERVER, "--max-concurrency", "4").startswith(
        "--max-concurrency needs --reissue"
    )


def test_a_recording_of_few_requests_is_learned_from_with_a_warning(tmp_path: Path, capsys: Captured) -> None:
    times = {"send_time_us": 1000, "first_chunk_time_us": 41_000, "last_chunk_time_us": 141_000, "status": "ok"}
    header = written_trace(tmp_path, [row(0, 1000, output_tokens=9, **times)])
    assert run(["fit", str(header), *SERVER, "-o", str(tmp_path / "learned.yaml")]) == 0
    assert "blis fit: few requests to learn from, 1: what is expected decides most" in capsys.readouterr().err


def test_a_cap_that_shows_in_a_recording_and_is_not_given_is_named(tmp_path: Path, capsys: Captured) -> None:
    header = written_trace(tmp_path, capped_rows(40, cap=4), "real")
    arguments = ["fit", str(header), *SERVER, "-o", str(tmp_path / "learned.yaml")]
    assert run(arguments) == 0
    said = capsys.readouterr().err
    assert f"blis fit: warning: {header}: 36 of 40 requests were sent late" in said
    assert "; --reissue --max-concurrency 4 sends as it did\n" in said
    alone = (
        "blis fit: warning: all recordings are of a saturated server, which teach little alone; add one at a lower load"
    )
    assert alone in said
    assert run([*arguments, "--reissue", "--max-concurrency", "4"]) == 0
    said = capsys.readouterr().err
    assert "sent late" not in said
    assert alone in said


def test_requests_that_the_described_server_would_refuse_are_counted(tmp_path: Path, capsys: Captured) -> None:
    times = {"send_time_us": 1000, "first_chunk_time_us": 41_000, "last_chunk_time_us": 141_000, "status": "ok"}
    rows = [row(number, 1000, input_tokens=tokens, output_tokens=9, **times) for number, tokens in enumerate((8, 900))]
    header = written_trace(tmp_path, rows)
    assert run(["fit", str(header), *SERVER, "--max-model-len", "500", "-o", str(tmp_path / "learned.yaml")]) == 0
    assert (
        "1 of 2 requests are left out, for the server as described refuses them: "
        "the prompt has 900 tokens, at most 499 fit into max_model_len\n" in capsys.readouterr().err
    )


def test_a_server_that_is_too_small_for_every_request_is_refused(trace: Path, capsys: Captured) -> None:
    assert run(["fit", str(trace), *SERVER, "--max-model-len", "1"]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"no request of {trace.parent.name}/trace.csv fits a context window of 1 tokens\n")


def test_a_recording_without_latencies_is_refused_by_name(tmp_path: Path, capsys: Captured) -> None:
    header = written_trace(tmp_path, [row(0, 0), row(1, 10)])
    message = refused(capsys, str(header), *SERVER)
    lacking = "none for qwen3-14b was answered in a stream, with its times"
    assert message == f"no row of {tmp_path / 'trace.csv'} can be learned from: {lacking}"
