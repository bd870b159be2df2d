"""Traces written in the formats of other programs are read back from them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from traces import TraceHeader, TraceRow, read_trace, write_trace

ROWS = [
    TraceRow(request_id=0, arrival_time_us=0, input_tokens=100, prefix_group="g", prefix_length=1100, output_tokens=40),
    TraceRow(
        request_id=1, arrival_time_us=1500, input_tokens=900, prefix_group="g", prefix_length=1100, output_tokens=9
    ),
    TraceRow(request_id=2, arrival_time_us=2_000_000, input_tokens=700, output_tokens=800, session_id="s"),
    TraceRow(
        request_id=3,
        arrival_time_us=9_000_000,
        input_tokens=1600,
        output_tokens=5,
        session_id="s",
        round_index=1,
        parents="2",
        think_time_us=250_000,
        context_tokens=1500,
    ),
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    columns = ("parents", "think_time_us", "context_tokens")
    write_trace(tmp_path / "trace.yaml", TraceHeader(), ROWS, columns)
    return str(tmp_path / "trace.yaml")


@pytest.mark.parametrize("name", ["azure", "vidur", "mooncake"])
def test_instants_and_lengths_come_back(name: str, trace: str, tmp_path: Path) -> None:
    written = str(tmp_path / "written")
    assert run(["convert", "trace", trace, "--to", name, "--output", written]) == 0
    assert run(["convert", name, written, "--output", str(tmp_path / "again")]) == 0
    again = read_trace(tmp_path / "again.yaml").rows
    assert [(row.arrival_time_us, row.input_tokens, row.output_tokens) for row in again] == [
        (row.arrival_time_us, row.prefix_length + row.input_tokens, row.output_tokens) for row in ROWS
    ]


def test_blocks_of_mooncake_are_equal_as_far_as_prompts_are(trace: str, tmp_path: Path) -> None:
    written = tmp_path / "written.jsonl"
    assert run(["convert", "trace", trace, "--to", "mooncake", "--output", str(written)]) == 0
    first, second, third, fourth = (json.loads(line)["hash_ids"] for line in written.read_text().splitlines())
    assert [len(each) for each in (first, second, third, fourth)] == [3, 4, 2, 1]
    assert first[:2] == second[:2]
    assert len({*first, *second, *third, *fourth}) == 3 + 2 + 2 + 1
    assert run(["convert", "mooncake", str(written), "--output", str(tmp_path / "again")]) == 0
    again = read_trace(tmp_path / "again.yaml").rows
    assert [(row.context_tokens, row.think_time_us) for row in again] == [(0, 0), (1024, 0), (0, 0), (1500, 250_000)]


def test_turns_of_mooncake_have_what_they_add_to_their_conversation(trace: str, tmp_path: Path) -> None:
    written = tmp_path / "written.jsonl"
    assert run(["convert", "trace", trace, "--to", "mooncake", "--output", str(written)]) == 0
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["input_length"] for line in lines if line.get("session_id")] == [700, 1600 - 700 - 800]
    assert [line.get("delay") for line in lines] == [None, None, None, 250]


@pytest.mark.parametrize(
    "more",
    [{"context_tokens": 700}, {"context_tokens": 0}, {"context_tokens": 1500, "input_tokens": 1500}, {"parents": "0"}],
)
def test_sessions_that_are_no_conversation_are_written_as_single_requests(
    more: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*ROWS[:3], replace(ROWS[3], **more)]
    write_trace(tmp_path / "t.yaml", TraceHeader(), rows, ("parents", "think_time_us", "context_tokens"))
    written = tmp_path / "written.jsonl"
    assert run(["convert", "trace", str(tmp_path / "t.yaml"), "--to", "mooncake", "--output", str(written)]) == 0
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["input_length"] for line in lines] == [1200, 2000, 700, rows[3].input_tokens]
    assert not any("session_id" in line for line in lines)
    assert "left out: 1 sessions whose prompts do not go on from the reply before" in capsys.readouterr().err


def test_columns_without_a_place_are_named(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "trace", trace, "--to", "azure", "--output", str(tmp_path / "a.csv")]) == 0
    said = capsys.readouterr().err
    names = "session_id, round_index, prefix_group, think_time_us, context_tokens, parents, context_of"
    assert f"note: there is no place for {names}\n" in said


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("trace", "t.yaml", "-o", "x"), "--to is required with trace, one of azure, vidur, mooncake"),
        (("trace", "t.yaml", "--to", "azure"), "--output is required with --to, the file to write"),
        (("preset", "chatbot", "--to", "azure", "-o", "x"), "--to needs requests, preset becomes a workload spec"),
        (("trace", "t.yaml", "--to", "azur", "-o", "x"), "--to must be one of azure, vidur, mooncake"),
    ],
)
def test_unwritable_values_are_refused(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", *words]) == 2
    assert problem in capsys.readouterr().err
