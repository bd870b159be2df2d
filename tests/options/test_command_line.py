from dataclasses import dataclass

import pytest

from blis_sim.options import OptionError, option
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.option import parse_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    size: int = option(1, flags=("--size", "--tensor-parallel-size"))
    rate: float | None = option(None)
    name: str = option("")
    quick: bool = option(False)
    slow: bool = option(True)
    label: tuple[str, ...] = option((), repeatable=True)
    trace: str | None = option(None, positional=True)
    output: str = option("", flags=("--output", "-o"))
    count: int | None = option(None)


def test_a_command_line_is_read_as_settings() -> None:
    line = "--tensor-parallel-size 4 t.yaml --rate=-1 --quick --no-slow --label a,b --label c --name=x=y"
    assert parse_command_line(Options, line.split()).values == {
        "size": 4, "rate": -1.0, "quick": True, "slow": False, "label": ("a,b", "c"), "name": "x=y",
        "trace": "t.yaml",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--xyz", "^no such option: --xyz$"),
        ("--nome x", "^no such option: --nome, did you mean --name[?]$"),
        ("--quick=1", "^--quick must be true or false, got '1'$"),
        ("-q", "^no such option: -q$"),
        ("--rate often", "^--rate must be a number, got 'often'$"),
        ("--rate", "--rate must be given a value"),
        ("a b", "unexpected argument: b"),
        ("--no-size", "no such option: --no-size"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused(line: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_command_line(Options, line.split())


@pytest.mark.parametrize(("line", "value"), [("--quick", True), ("--quick=true", True), ("--quick=false", False)])
def test_a_switch_takes_true_or_false_behind_an_equals_sign(line: str, value: bool) -> None:
    assert parse_command_line(Options, [line]).values == {"quick": value}
    with pytest.raises(OptionError, match=r"^--no-quick takes no value, got 'true'$"):
        parse_command_line(Options, ["--no-quick=true"])


@pytest.mark.parametrize("line", ["-o out", "-oout", "-o=out", "--output out", "--output=out"])
def test_a_flag_of_one_letter_takes_its_value_from_the_same_word_or_the_next(line: str) -> None:
    assert parse_command_line(Options, line.split()).values == {"output": "out"}


def test_a_flag_takes_the_next_word_for_its_value_whatever_it_looks_like() -> None:
    assert parse_command_line(Options, ["--name", "--rate", "--", "--quick"]).values == {
        "name": "--rate",
        "trace": "--quick",
    }


@pytest.mark.parametrize("flag", ["--help", "-h", "--help-all"])
def test_help_is_asked_for_anywhere_but_in_a_value_or_after_the_flags(flag: str) -> None:
    assert parse_command_line(Options, ["--rate", "often", flag, "--quick"]).requests_help
    assert not parse_command_line(Options, ["--name", "--help", "--", "--help"]).requests_help


def test_texts_are_read_as_flags_have_them_or_as_files_have_them() -> None:
    assert parse_command_line(Options, ["--name", "none"]).values == {"name": "none"}
    assert parse_command_line(Options, ["--count", "none"], parse_value).values == {"count": None}
