"""Recorded conversations replayed at their own times behind what was said before, or so many at a time."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from tests.replay.small_traces import row, written
from traces import TraceRow

MODEL = ("--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1")


def talk(name: str, first_id: int, starts_us: int, gap_us: int, tokens: int = 160) -> list[TraceRow]:
    return [
        row(
            first_id + number,
            starts_us + number * gap_us,
            session_id=name,
            round_index=number,
            input_tokens=tokens,
            output_tokens=16,
        )
        for number in range(3)
    ]


def replayed(tmp_path: Path, rows: list[TraceRow], *flags: str) -> dict[int, dict[str, Any]]:
    results, again = tmp_path / "results.json", tmp_path / "again"
    command = ["replay", str(written(tmp_path, rows)), *MODEL, "--results-path", str(results)]
    assert run([*command, "--trace-output", str(again), *flags]) == 0
    lines = (tmp_path / "again.csv").read_text().splitlines()
    names = lines[0].split(",")
    columns = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    arrived = {int(each["request_id"]): int(each["arrival_time_us"]) for each in columns}
    found = json.loads(results.read_text())
    return {each["request_id"]: {**each, "arrived": arrived[each["request_id"]]} for each in found}


def test_rounds_at_their_own_times_hold_what_was_said(tmp_path: Path) -> None:
    found = replayed(tmp_path, talk("a", 0, 0, 5_000_000), "--session-mode", "fixed-accumulate")
    assert [found[n]["input_tokens"] for n in range(3)] == [160, 160 + 16 + 160, 336 + 16 + 160]
    assert [found[n]["arrived"] for n in range(3)] == [0, 5_000_000, 10_000_000]
    alone = replayed(tmp_path, [row(0, 0, input_tokens=512, output_tokens=16)])
    assert found[2]["ttft_us"] < 0.9 * alone[0]["ttft_us"]  # what was said is in the cache


def test_a_round_waits_for_the_reply_that_its_prompt_holds(tmp_path: Path) -> None:
    found = replayed(tmp_path, talk("a", 0, 0, 1_000), "--session-mode", "fixed-accumulate")
    for n in (1, 2):
        assert found[n]["arrived"] == pytest.approx(found[n - 1]["arrived"] + found[n - 1]["e2e_us"], abs=50)


def test_a_pool_begins_a_conversation_when_another_is_over(tmp_path: Path) -> None:
    rows = [each for n in range(4) for each in talk(f"s{n}", 3 * n, 10**9 * n, 1_000)]
    flags = ("--session-mode", "closed-loop", "--session-pool", "2", "--think-time-ms", "10")
    found = replayed(tmp_path, rows, *flags)
    spans = [(found[3 * n]["arrived"], found[3 * n + 2]["arrived"] + found[3 * n + 2]["e2e_us"]) for n in range(4)]
    assert [begin for begin, _ in spans[:2]] == [0, 0]
    ends = sorted(end for _, end in spans)[:2]
    assert sorted(begin for begin, _ in spans[2:]) == pytest.approx(ends, abs=50)


def test_a_pool_goes_on_behind_a_conversation_that_failed(tmp_path: Path) -> None:
    rows = talk("a", 0, 0, 1_000) + talk("b", 3, 9_000, 1_000)
    rows[0] = row(0, 0, session_id="a", input_tokens=160, output_tokens=16, deadline_us=5)
    found = replayed(tmp_path, rows, "--session-mode", "closed-loop", "--session-pool", "1")
    assert sorted(found) == [3, 4, 5]


def test_a_closed_loop_takes_prompts_as_the_header_says(tmp_path: Path) -> None:
    header = written(tmp_path, talk("a", 0, 0, 1_000))
    header.write_text(header.read_text() + "session_context_growth: accumulate\n")
    results = tmp_path / "results.json"
    for mode, lengths in (("closed-loop", [160, 336, 512]), ("fixed", [160, 160, 160])):
        assert run(["replay", str(header), *MODEL, "--session-mode", mode, "--results-path", str(results)]) == 0
        assert [each["input_tokens"] for each in json.loads(results.read_text())] == lengths


@pytest.mark.parametrize(
    "flags", [("--session-pool", "2"), ("--session-pool", "2", "--session-mode", "fixed-accumulate")]
)
def test_a_pool_needs_a_closed_loop(tmp_path: Path, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(written(tmp_path, talk("a", 0, 0, 1))), *MODEL, *flags]) == 2
    assert "--session-pool needs --session-mode closed-loop" in capsys.readouterr().err
