"""`blis` itself: search of a command, the overview, and errors of one line without a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from blis_sim.cli.commands import COMMANDS, GROUPS, commands_in
from tests.cli.conftest import Said

Blis = Callable[..., Said]


def test_the_version_is_that_of_the_distribution(blis: Blis) -> None:
    from importlib.metadata import version

    code, said, complained = blis("--version")
    assert (code, complained) == (0, "")
    assert said.removesuffix(" (compiled engine)\n").rstrip() == version("blis-mockserve")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_the_overview_lists_every_command_and_group_with_its_help(
    blis: Blis, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    code, out, err = blis(*arguments)
    assert (code, err) == (0, "")
    alone = {name: COMMANDS[name].help for name in commands_in("") if name.split()[0] not in GROUPS}
    assert listed(out) == alone | GROUPS


def test_help_is_a_command_too(blis: Blis) -> None:
    assert blis("help", "bench", "tune") == blis("bench", "tune", "--help")


def listed(overview: str) -> dict[str, str]:
    """The names in a list of commands, each with its help."""
    lines = overview.partition("─ Commands ")[2].splitlines()[1:]
    rows = [[cell for cell in line.strip("│ ").split("  ") if cell] for line in lines if line.startswith("│")]
    return {name.strip(): text.strip() for name, text in rows}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_a_group_lists_its_commands(
    blis: Blis, group: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    code, out, err = blis(group, *arguments)
    assert (code, err) == (0, "")
    assert out.split()[:3] == ["Usage:", "blis", group]
    assert {f"{group} {name}": text for name, text in listed(out).items()} == {
        name: row.help for name, row in COMMANDS.items() if name.startswith(f"{group} ")
    }


def test_an_unknown_command_of_a_group_is_named(blis: Blis) -> None:
    code, out, err = blis("bench", "sing", "--loud")
    assert (code, out) == (2, "")
    assert err.startswith("blis bench: error: unknown command 'sing', known are serve, ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate"], "unknown command 'simulate', known are serve, observe, playback, top, "),
        (["REPLAY"], "unknown command 'REPLAY'"),
        (["sevre"], "unknown command 'sevre', did you mean 'serve'? known are serve, observe"),
        (["help", "sevre"], "did you mean 'serve'?"),
        ([""], "''"),
        (["--verbose"], "--verbose"),
    ],
)
def test_an_unknown_command_is_refused_in_one_line(blis: Blis, arguments: list[str], said: str) -> None:
    code, out, err = blis(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("blis: error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_is_refused_in_one_line_by_every_command(blis: Blis, command: str) -> None:
    code, out, err = blis(command, "--no-such-flag")
    assert (code, out) == (2, "")
    assert err.startswith(f"blis {command}: error: ")
    assert err.count("\n") == 1
    assert "--no-such-flag" in err


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in ("bench serve", "doctor", "gpus", "models")]
)
def test_every_command_requires_an_argument(blis: Blis, command: str) -> None:
    code, out, err = blis(command)
    assert (code, out) == (2, "")
    assert err.startswith(f"blis {command}: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "trace.yaml: no such file"),
        (["--model", "qwen/qwen3-14b", "--tp", "two"], "--tp"),
        (["--model", "qwen/qwen3-14b", "--tp", "-1"], "--tp must be at least 0, got -1"),
        (["--model", "qwen/qwen3-14b", "--scheduler", "lifo"], "--scheduler must be one of fcfs, "),
        (["--model", "qwen/qwen3-14b", "--gpu-memory-utilization", "1.01"], "must be at most 1, got 1.01"),
    ],
)
def test_a_bad_setting_of_a_real_command_is_one_line(blis: Blis, flags: list[str], said: str) -> None:
    code, out, err = blis("replay", "trace.yaml", *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("name", ["absent.yaml", "folder", "binary.yaml"])
def test_a_file_that_cannot_be_read_is_named_in_one_line(blis: Blis, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    code, out, err = blis("replay", str(tmp_path / name), "--model", "qwen/qwen3-14b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(tmp_path / name) in err
