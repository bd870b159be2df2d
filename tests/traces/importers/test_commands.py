"""`blis convert` and `blis compose` as a user runs them."""

import os
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from traces import TraceHeader, TraceRow, read_trace, write_trace
from traces.workload.generate import generate
from traces.workload.spec import read_spec

SPEC = """
version: "2"
seed: {seed}
aggregate_rate: {rate}
num_requests: 50
clients:
  - id: c
    rate_fraction: 3
    prefix_group: g
    arrival: {{process: poisson}}
    input_distribution: {{type: constant, params: {{value: 10}}}}
    output_distribution: {{type: constant, params: {{value: 10}}}}
"""


def test_a_preset_written_to_a_file_is_a_spec_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chatbot.yaml"
    assert run(["convert", "preset", "chatbot", "--rate", "5", "--num-requests", "7", "-o", str(path)]) == 0
    assert len(generate(read_spec(path)).requests) == 7
    assert capsys.readouterr().out == ""


def test_the_flags_of_the_original_tool_name_the_source_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "preset", "chatbot"]) == 0
    expected = capsys.readouterr().out
    assert run(["convert", "preset", "--name", "chatbot"]) == 0
    assert capsys.readouterr().out == expected


def test_a_trace_is_written_and_omissions_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,3,4\n1,0,9\n")
    assert run(["convert", "vidur", str(tmp_path / "t.csv"), "-o", str(tmp_path / "out")]) == 0
    (row,) = read_trace(tmp_path / "out.yaml").rows
    assert (row.input_tokens, row.output_tokens) == (3, 4)
    assert "left out: 1 requests without prompt or output tokens" in capsys.readouterr().err


def test_composed_specs_send_what_each_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("a", 2), ("b", 6)):
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(seed=1, rate=rate))
    out = tmp_path / "all.yaml"
    arguments = ["compose", "--from", str(tmp_path / "a.yaml"), "--from", str(tmp_path / "b.yaml"), "-o", str(out)]
    assert run(arguments) == 0
    spec = read_spec(out)
    assert (spec.aggregate_rate, spec.num_requests) == (8, 100)
    assert [client.rate_fraction for client in spec.clients] == [0.25, 0.75]
    assert "become one group: g" in capsys.readouterr().err


def test_composed_traces_are_a_workload_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shift in (("a", 0), ("b", 5)):
        rows = [
            TraceRow(
                request_id=number,
                input_tokens=9,
                output_tokens=1,
                session_id="s",
                arrival_time_us=100 + shift * number,
                send_time_us=1,
            )
            for number in range(2)
        ]
        write_trace(tmp_path / f"{name}.yaml", TraceHeader(), rows)
    sources = ["--from", str(tmp_path / "a.yaml"), "--from", str(tmp_path / "b.yaml")]
    assert run(["compose", *sources, "-o", str(tmp_path / "all")]) == 0
    rows = list(read_trace(tmp_path / "all.yaml").rows)
    assert [row.arrival_time_us for row in rows] == [0, 0, 0, 5]
    assert [row.request_id for row in rows] == [0, 1, 2, 3]
    assert [row.session_id for row in rows] == ["0-s", "0-s", "1-s", "1-s"]
    assert "of 4 requests are left out" in capsys.readouterr().err


def test_specs_and_traces_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(SPEC.format(seed=1, rate=2))
    write_trace(tmp_path / "b.yaml", TraceHeader(), [])
    assert run(["compose", "--from", str(tmp_path / "a.yaml"), "--from", str(tmp_path / "b.yaml")]) == 2
    assert "--from must name specs only or traces only" in capsys.readouterr().err


def test_composing_names_the_specs_whose_rates_add_up_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(SPEC.format(seed=1, rate=1e6))
    assert run(["compose", "--from", "a.yaml", "--from", "b.yaml"]) == 2
    message = "a.yaml, b.yaml, as one spec, key aggregate_rate: expected a number between 0 and 1000000, got 2000000"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compose"], "--from"),
        (["compose", "--from", "/nope"], "/nope: no such file"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("command", [["convert", "azure", "a.csv"], ["compose", "--from", "t.yaml"]])
def test_a_folder_may_have_the_name_that_the_files_of_a_trace_begin_with(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,5,6\n")
    assert run(["convert", "azure", "a.csv", "-o", "t"]) == 0
    Path("out").mkdir()
    assert run([*command, "-o", "out"]) == 0
    assert Path("out.csv").read_text() == Path("t.csv").read_text()


def test_a_spec_is_not_written_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["convert", "preset", "chatbot", "-o", "spec.yaml"]) == 0
    capsys.readouterr()
    assert run(["convert", "preset", "chatbot", "-o", "."]) == 2
    assert run(["compose", "--from", "spec.yaml", "-o", "."]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert (first.startswith("blis convert: error: "), second.startswith("blis compose: error: ")) == (True, True)


@pytest.mark.parametrize("command", ["compose --from {pipe} --from spec.yaml", "convert inference-perf {pipe}"])
def test_a_pipe_is_read_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC.format(seed=1, rate=2))
    section = "version: '2'\ninference_perf: {stages: [{rate: 2, duration: 5}], shared_prefix: %s}\n"
    shared = "{num_unique_system_prompts: 1, num_users_per_system_prompt: 1, system_prompt_len: 9, question_len: 4,"
    shared += " output_len: 5}"
    text = SPEC.format(seed=2, rate=3) if command.startswith("compose") else section % shared
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    assert run([*command.format(pipe=f"/dev/fd/{reading}").split(), "-o", "out.yaml"]) == 0
    os.close(reading)
    assert read_spec("out.yaml").clients
