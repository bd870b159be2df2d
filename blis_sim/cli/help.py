"""What `--help` says of a command: its settings under headings, those of the command itself first."""

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from blis_sim.options import options_of
from blis_sim.options.option import Setting
from blis_sim.options.text import NUMBERS

WIDEST = 120
"""Columns; more are hard to read."""

OTHERS = "Options"
"""What settings without a heading stand under."""

Row = tuple[str, str]
"""How a setting is spelled, and what it is for."""


def command_with_help(options_class: type) -> type[TyperCommand]:
    """The class of a typer command that writes the help of these settings."""

    class Command(TyperCommand):
        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            return ["[OPTIONS]", *map(_usage, by_heading(options_class).get("", ()))]

        def format_options(self, ctx: Any, formatter: Any) -> None:
            for heading, rows in _sections(options_class).items():
                with formatter.section(heading):
                    formatter.write_dl(rows)

    return Command


def by_heading(options_class: type) -> Mapping[str, list[Setting]]:
    """Heading to settings: arguments without one, then those of the class itself, then those of its sections."""
    settings = options_of(options_class)
    found: dict[str, list[Setting]] = {"": [each for each in settings if each.option.positional]}
    for setting in sorted(settings, key=lambda each: bool(each.path)):
        if not setting.option.positional:
            found.setdefault(setting.heading or OTHERS, []).append(setting)
    return found


def _sections(options_class: type) -> Mapping[str, list[Row]]:
    sections: dict[str, list[Row]] = {}
    for heading, settings in by_heading(options_class).items():
        for setting in settings:
            if not setting.option.hidden:
                sections.setdefault(heading or "Arguments", []).append((_spelled(setting), _explained(setting)))
    sections.setdefault(OTHERS, []).append(("--help", "Show this message and exit."))
    return sections


def _usage(argument: Setting) -> str:
    name = argument.option.metavar or argument.label
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.is_repeated else ''}"


def _spelled(setting: Setting) -> str:
    known, kind = setting.option, setting.kind
    if known.positional:
        return known.metavar or setting.label
    spellings = ", ".join(setting.flags)
    if kind is bool:
        return f"{spellings} / {setting.spellings[-1]}" if setting.default else spellings
    name = "LIST" if setting.is_list and not setting.is_repeated else {int: "N", float: "X"}.get(kind, "TEXT")
    return f"{spellings} {known.metavar or name}"


def _explained(setting: Setting) -> str:
    known = setting.option
    text = f"{known.help} One of: {', '.join(filter(None, known.choices))}." if known.choices else known.help
    if setting.required:
        return f"{text} [required]"
    if setting.default in (None, "", ()) or setting.default is False or re.search(r"\bdefault\b", known.help, re.I):
        return text
    return f"{text} [default: {_default(setting)}]"


def _default(setting: Setting) -> str:
    if setting.kind is bool:
        return "on"
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    return f"{setting.default:g}" if setting.kind in NUMBERS and abs(setting.default) < 1e6 else str(setting.default)
