"""Our scheduling against vLLM's own scheduler, step by step, on its recorded scenarios."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.vllm_scenarios import SCENARIOS, record


def recorded(reference: Path, name: str) -> list[dict[str, Any]]:
    """The recorder's lines of one scenario, in our words, without the empty call that flushes what has finished."""
    text = (reference / "golden" / "vllm" / "sched.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    normal = [_normal(line) for line in lines if line["scenario"] == name]
    while not any((normal[-1]["n"], normal[-1]["out"], normal[-1]["running"])):
        normal.pop()
    return normal


def _normal(line: dict[str, Any]) -> dict[str, Any]:
    blocks = {request: groups[0] for request, _, groups in line.get("new", [])}
    blocks |= {request: groups[0] if groups else [] for request, _, groups in line.get("cached", [])}
    return {
        "n": line.get("n", {}),
        "blocks": blocks,
        "preempted": line.get("preempted", []),
        "out": {request: out[:2] for request, out in line["out"].items()},
        "running": line["running"],
        "waiting": line["waiting"],
        "free": line["free"],
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_vllms(name: str, reference: Path) -> None:
    ours = [
        {key: value for key, value in line.items() if key not in ("queries", "hits")}
        for line in record(SCENARIOS[name])
    ]
    theirs = recorded(reference, name)
    for number, (our_line, their_line) in enumerate(zip(ours, theirs, strict=False)):
        assert our_line == their_line, f"{name} step {number}"
    assert len(ours) == len(theirs)
