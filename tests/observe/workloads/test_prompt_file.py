"""Prompts from a file are sent as they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError
from observe.options import ObserveOptions
from observe.requests import FilePrompt, read_prompts

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


def test_prompts_are_sent_in_turn_and_counted_by_the_server(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    entries = [{"prompt": "one two three"}, {"prompt": "a\nb \u2028 c", "output_tokens": 9, "id": 7}]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    run = observe(model="ok", prompts=str(path), num_requests=3, output_tokens=4)
    assert run.code == 0
    assert sorted(each["body"]["prompt"] for each in seen()) == sorted(
        ["one two three", "a\nb \u2028 c", "one two three"]
    )
    rows = sorted(run.trace.rows, key=lambda row: row.request_id)
    assert [(row.input_tokens, row.server_input_tokens) for row in rows] == [(3, 3), (3, 3), (3, 3)]
    assert [row.output_tokens for row in rows] == [4, 9, 4]
    assert run.trace.header.workload_spec == str(path)
    assert "are sent more than once" in run.messages


def test_a_run_of_given_prompts_can_be_resumed(observe: Observe, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one two three\nfour\n")
    run = observe(model="ok", prompts=str(path), num_requests=6)
    data = Path(f"{run.prefix}.csv")
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:4]))
    run = observe(model="ok", prompts=str(path), num_requests=6, resume=True)
    assert run.summary["recorded_earlier"] == 3
    assert sorted(row.input_tokens for row in run.trace.rows) == [1, 1, 1, 3, 3, 3]


def test_a_text_file_has_a_prompt_per_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text('first\r\n\n{"prompt": "as it is"}\n')
    assert read_prompts(tmp_path / "p.txt") == [FilePrompt("first"), FilePrompt('{"prompt": "as it is"}')]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nope", "line 1: expected a JSON object with the key prompt"),
        ("[1]", "line 1: expected a JSON object with text under the key prompt, got [1]"),
        ('{"prompt": 3}', "expected a JSON object with text under the key prompt"),
        ('{"prompt": "x", "output_tokens": 0}', "key output_tokens: expected a whole number above 0, got 0"),
        ("", "expected a prompt per line, got none"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(line + "\n")
    with pytest.raises(BlisError) as raised:
        read_prompts(tmp_path / "p.jsonl")
    assert message in str(raised.value)


@pytest.mark.parametrize("more", [{"trace": "t.yaml"}, {"rate": 1.0, "num_requests": 2, "prefix_tokens": 5}])
def test_prompts_need_a_rate_and_no_prefix(more: dict[str, Any]) -> None:
    with pytest.raises(BlisError, match="--prompts"):
        ObserveOptions(url="http://localhost:1", output="out", prompts="p.txt", **more)
