"""The table of commands: each row leads to a settings table and a function, and the help lists all settings."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence

import pytest

from blis_sim.cli.commands import COMMANDS
from blis_sim.options import Option, options_of
from blis_sim.options.option import Setting, sections_of
from tests.cli.conftest import Said

Blis = Callable[..., Said]


def options_class(command: str) -> type:
    row = COMMANDS[command]
    found = getattr(importlib.import_module(row.module), row.options)
    assert isinstance(found, type)
    return found


def settings_of(command: str) -> Sequence[Setting]:
    return options_of(options_class(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_row_leads_to_a_frozen_settings_table_and_a_function_that_runs_it(command: str) -> None:
    kind = options_class(command)
    assert dataclasses.is_dataclass(kind)
    assert hasattr(kind, "__slots__")
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert settings_of(command)
    run = importlib.import_module(COMMANDS[command].module).run
    assert len(inspect.signature(run).parameters) == 1


def values_in(kind: type) -> Iterator[str]:
    """The fields of an options class and of its sections that hold values."""
    sections = sections_of(kind)
    for field in dataclasses.fields(kind):
        yield from values_in(sections[field.name]) if field.name in sections else (field.name,)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_field_is_a_setting_with_a_help_text(command: str) -> None:
    without_flags = {"kv_devices"}  # which the file of --kv-offload-config describes
    assert set(values_in(options_class(command))) - without_flags == {each.name for each in settings_of(command)}
    assert [setting.name for setting in settings_of(command) if not setting.option.help.endswith((".", ")"))] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_default_is_one_of_the_choices(command: str) -> None:
    """Defaults are taken unchecked, so that the modules which they name need not be imported."""
    for setting in settings_of(command):
        values = setting.default if setting.is_list else (setting.default,)
        if setting.option.choices and setting.default is not None:
            assert set(values) <= set(setting.option.choices), setting.name


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_settings_share_a_flag(command: str) -> None:
    flags = [flag for setting in settings_of(command) if not setting.option.positional for flag in setting.flags]
    assert len(flags) == len(set(flags))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "2000")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_setting_with_all_its_spellings_and_nothing_hidden(blis: Blis, command: str) -> None:
    code, out, err = blis(*command.split(), "--help-all")
    assert (code, err) == (0, "")
    packed = "".join(out.split())
    shown = [setting for setting in settings_of(command) if not setting.option.hidden]
    words = out.replace(",", " ").split()
    missing = [spelling for setting in shown for spelling in spellings(setting) if spelling not in words]
    assert missing == []
    assert [setting.name for setting in shown if "".join(setting.option.help.split()) not in packed] == []
    words = out.split()
    assert [setting.name for setting in settings_of(command) if setting.option.hidden and setting.label in words] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_what_the_command_is_for(blis: Blis, command: str) -> None:
    out = blis(*command.split(), "--help")[1]
    assert out.split()[: 2 + len(command.split())] == ["Usage:", "blis", *command.split()]
    assert COMMANDS[command].help in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_that_a_command_adds_do_not_stand_under_a_heading_of_its_parents(command: str) -> None:
    kind = options_class(command)
    of_parents = {
        each.name: each.heading
        for parent in kind.__bases__
        if dataclasses.is_dataclass(parent)
        for each in options_of(parent)
    }
    added = {
        each.heading for each in settings_of(command) if each.name not in of_parents and not each.option.positional
    }
    assert added & set(of_parents.values()) == set()


def spellings(setting: Setting) -> list[str]:
    """The words of a setting as they stand in a help text."""
    known: Option = setting.option
    if known.positional:
        return (known.metavar or setting.name.upper()).split()
    first, *others = setting.flags
    negated = [f"--no-{first.removeprefix('--')}"] if setting.type is bool and setting.default else []
    return [first, *others, *negated]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_default_has_the_type_of_its_setting(command: str) -> None:
    """Equal values from a flag must be equal, and print alike: a whole number is not one with a point."""
    for setting in settings_of(command):
        if setting.default is not None and not setting.required:
            assert type(setting.default) is (tuple if setting.is_list else setting.kind), setting.name
