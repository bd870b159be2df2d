"""Conclusions of pages from a simulation hold with several times as many requests."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from replay.closed_loop import FIRST_LENGTH
from tests.docs.pages import PROJECT, fences
from tests.examples import is_nightly

Captured = pytest.CaptureFixture[str]
PAGES_WITH_CONCLUSIONS = ("quick-start.md", "tutorial-capacity.md", "sweep.md")
TIMES = 10 if is_nightly() else 3
NOTEBOOK_LOAD = "--prompt-tokens 1000 --output-tokens 200"
NOTEBOOK_SWEEP = f"blis sweep --model qwen/qwen3-14b --hardware H100 --vary rate=2,4,8,12 {NOTEBOOK_LOAD}"


def sweeps() -> list[str]:
    commands = [
        command.text.partition(" --plot")[0] if " -o " not in command.text else command.text
        for name in PAGES_WITH_CONCLUSIONS
        for fence in fences(PROJECT / "docs" / name)
        for command in fence.commands
        if command.text.startswith("blis sweep --model")
    ]
    return [*commands, NOTEBOOK_SWEEP]


def without(arguments: list[str], *flags: str) -> list[str]:
    """The arguments without these flags and their values."""
    return [
        each
        for place, each in enumerate(arguments)
        if each not in flags and (not place or arguments[place - 1] not in flags)
    ]


def concluded(text: str, folder: Path, capsys: Captured, *more: str) -> dict[str, Any]:
    """The verdict of a sweep on each point, and the point that it calls the cheapest."""
    arguments = without(shlex.split(text)[1:], "--plot", "-o", "--num-requests")
    assert run([*arguments, "-o", str(folder / f"{len(more)}.csv"), "--json", *more]) == 0
    found = json.loads(capsys.readouterr().out)
    return {
        "cheapest": [each["point"] for each in found["points"]].index(found["cheapest_point"])
        if found["cheapest_point"]
        else None,
        "points": [
            (each.get("meets_targets"), each["overload_queue_growth_per_min"] is not None) for each in found["points"]
        ],
    }


@pytest.mark.slow
@pytest.mark.parametrize("text", sweeps())
def test_many_more_requests_give_the_same_conclusions(text: str, tmp_path: Path, capsys: Captured) -> None:
    as_shown = concluded(text, tmp_path, capsys)
    longer = concluded(text, tmp_path, capsys, "--num-requests", str(TIMES * FIRST_LENGTH))
    assert longer == as_shown


@pytest.mark.slow
def test_one_deployment_of_the_tutorial_is_overloaded_at_any_length(capsys: Captured) -> None:
    load = ["run", "--model", "qwen/qwen3-14b", "--hardware", "H100", "--rate", "20", *NOTEBOOK_LOAD.split()]
    for more in ([], ["--num-requests", "300"], ["--num-requests", str(TIMES * FIRST_LENGTH)]):
        assert run([*load, "--fail-on", "overload", *more]) == 1
        assert "overloaded: served" in capsys.readouterr().out
