"""A command that is given a malformed trace refuses it in one clear line, never with a traceback."""

from pathlib import Path

import pytest

from blis_sim.cli.main import run
from tests.odd_traces import LOADS, REFUSED


def replayed(reference: Path, name: str, folder: Path) -> int:
    trace = str(reference / "golden" / "tools" / "errors" / f"{name}.yaml")
    return run(["replay", trace, "--model", "qwen/qwen3-14b", "--results-path", str(folder / "r.json")])


@pytest.mark.parametrize("name", LOADS)
def test_a_harmless_oddity_is_replayed(name: str, reference: Path, tmp_path: Path) -> None:
    assert replayed(reference, name, tmp_path) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_trace_ends_the_command_with_one_line(
    name: str, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(reference, name, tmp_path) == 2
    said = capsys.readouterr()
    assert f"{name}.{REFUSED[name]}" in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
