"""Command lines that are read without typer mean what they mean to typer."""

import dataclasses
import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.cli.commands import COMMANDS, PROGRAMS
from blis_sim.cli.flags import run_with_typer
from blis_sim.cli.running import plain_values
from blis_sim.options import BlisError, option, options_of
from tests.cli.toy_command import ToyOptions


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ManyWords:
    """What the toy has none of: arguments in any number, a repeated flag, one of a single letter."""

    words: tuple[str, ...] = option((), "Words.", positional=True)
    vary: tuple[str, ...] = option((), "Values.", repeatable=True)
    output: str = option("", "Where to.", flags=("--output", "-o"))
    rate: float = option(1.0, "How often.", infinity="inf")


def read_by_typer(options_class: type, arguments: list[str]) -> Any:
    """The options that typer makes; None for a mistake, and when it prints help instead."""
    made = []

    def run(options: Any) -> int:
        made.append(options)
        return 0

    try:
        run_with_typer(options_class, run, "Help.", arguments, "blis")
    except BlisError:
        return None
    return made[0] if made else None


def read_plainly(options_class: type, arguments: list[str]) -> Any:
    values = plain_values(options_class, arguments)
    try:
        return None if values is None else options_class(**values)
    except BlisError:
        return None


WORDS = st.sampled_from(["here", "1", "-1", "0.5", "inf", "1,2", "a,b", "[1, 2]", "-", "--", "", "x=y", "none", "true"])


@pytest.mark.parametrize("options_class", [ToyOptions, ManyWords])
@given(data=st.data())
def test_what_is_read_plainly_is_what_typer_reads(options_class: type, data: st.DataObject) -> None:
    flags = [spelling for setting in options_of(options_class) for spelling in setting.spellings]
    flag = st.sampled_from([*flags, "--help", "--rat", "-q", "-ox", "-o=x", "--rate=2", "--quiet=1", "--label="])
    required = ["--max-num-seqs", "8"] if options_class is ToyOptions else []
    arguments = required + data.draw(st.lists(flag | WORDS, max_size=6))
    plainly = read_plainly(options_class, arguments)
    if plainly is not None:
        assert plainly == read_by_typer(options_class, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["a", "--rate", "-2.5", "b", "--vary", "x=1,2", "--vary=y", "-o", "out"],
        ["--output", "--rate", "--", "--vary"],
        ["--rate", "inf"],
        ["-"],
    ],
)
def test_usual_command_lines_are_plain(arguments: list[str]) -> None:
    read = read_plainly(ManyWords, arguments)
    assert read is not None
    assert read == read_by_typer(ManyWords, arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["--rat", "1"], ["--rate"], ["--rate", "often"], ["-oout"], ["-q"]])
def test_help_mistakes_and_values_attached_to_short_flags_are_left_to_typer(arguments: list[str]) -> None:
    assert plain_values(ManyWords, arguments) is None


@pytest.mark.parametrize("row", [*COMMANDS.values(), *PROGRAMS.values()], ids=[*COMMANDS, *PROGRAMS])
def test_a_default_is_what_typer_makes_of_it(row: Any) -> None:
    """Typer reads defaults as if they had been given: a whole number would become one with a point."""
    for setting in options_of(getattr(importlib.import_module(row.module), row.options)):
        if setting.default is not None and not setting.required:
            kind = tuple if setting.is_list else setting.kind
            assert type(setting.default) is kind, setting.name
