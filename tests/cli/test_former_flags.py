"""Flags of earlier versions are read, and named in a line."""

import pytest

from blis_sim.cli.main import run

COMMAND = ["run", "--model", "qwen/qwen3-14b", "--num-requests", "2"]


def test_a_former_flag_means_its_present_name_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--engine", "blis"]) == 0
    present = capsys.readouterr()
    for former in (["--scheduling", "blis"], ["--scheduling=blis"]):
        assert run([*COMMAND, *former]) == 0
        found = capsys.readouterr()
        assert found.out == present.out
        assert found.err == "blis run: --scheduling is the former name of --engine\n" + present.err


def test_a_former_flag_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    found = capsys.readouterr().out
    assert "--engine" in found
    assert "--scheduling " not in found
