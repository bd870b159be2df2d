"""A setting is declared once: its flag, its variable of the environment, its key of a file and its name agree."""

import importlib
import os
import typing
from typing import Any

import pytest

from blis_sim.cli.commands import COMMANDS
from blis_sim.options import OptionError, options_of
from blis_sim.options.command_line import parse_command_line, variable_of
from blis_sim.options.option import Setting, find_setting, parse_yaml_value

OF_THE_BUILD_AND_THE_TESTS = {"BLIS_COMPILE", "BLIS_SHARED", "BLIS_VLLM"}


def options_class(command: str) -> type:
    row = COMMANDS[command]
    kind = getattr(importlib.import_module(row.module), row.options)
    assert isinstance(kind, type)
    return kind


def sample(setting: Setting) -> str:
    """The text of a value that the setting may have."""
    kind = typing.get_args(setting.kind)[0] if setting.is_list else setting.kind
    if kind is bool:
        return "true"
    if kind in (int, float):
        return str(int(setting.option.at_least or 0) + 1)
    return next(filter(None, setting.option.choices), "text")


def value_by_flag(kind: type, setting: Setting, text: str) -> Any:
    words = [setting.flags[0]] if setting.kind is bool else [setting.flags[0], text]
    return parse_command_line(kind, words).values[setting.name]


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] if name == "serve" else []) for name in COMMANDS]
)
def test_every_setting_has_the_same_value_in_every_spelling(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = options_class(command)
    flags = [setting for setting in options_of(kind) if not setting.option.positional]
    by_flag = {setting.name: value_by_flag(kind, setting, sample(setting)) for setting in flags}
    by_file = {
        find_setting(kind, setting.name).name: parse_yaml_value(
            setting, [sample(setting)] if setting.is_list else sample(setting)
        )
        for setting in flags
    }
    assert by_file == by_flag
    variables = {setting.name: variable for setting in flags if (variable := variable_of(setting)) is not None}
    for setting in flags:
        if setting.name in variables:
            monkeypatch.setenv(variables[setting.name], sample(setting))
    assert parse_command_line(kind, []).values == {name: by_flag[name] for name in variables}
    assert set(by_flag) - set(variables) <= {"format"}


def test_a_flag_wins_over_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = options_class("run")
    monkeypatch.setenv("BLIS_RATE", "7")
    monkeypatch.setenv("BLIS_JSON", "true")
    assert parse_command_line(kind, ["--rate", "3", "--no-json"]).values == {"rate": 3.0, "json": False}
    assert parse_command_line(kind, []).values == {"rate": 7.0, "json": True}
    assert parse_command_line(kind, [], reads_environment=False).values == {}


def test_a_variable_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIS_TP", "two")
    with pytest.raises(OptionError, match=r"^BLIS_TP: --tp must be a whole number, got 'two'$"):
        parse_command_line(options_class("run"), [])


def test_no_setting_takes_a_variable_that_means_something_else() -> None:
    kinds = [getattr(importlib.import_module(row.module), row.options) for row in COMMANDS.values()]
    variables = {variable_of(setting) for kind in kinds for setting in options_of(kind)}
    assert variables & {*OF_THE_BUILD_AND_THE_TESTS, "BLIS_FORMAT"} == set()
    assert not [each for each in os.environ if each in variables]
