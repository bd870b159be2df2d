"""Command lines that need no typer: most of them. Loading it takes longer than many a command runs."""

import typing
from collections.abc import Mapping
from typing import Any

from blis_sim.options import OptionError, options_of
from blis_sim.options.command_line import said_in
from blis_sim.options.option import Setting
from blis_sim.options.text import NUMBERS, read_list, read_number


def plain_values(options_class: type, arguments: list[str]) -> Mapping[str, Any] | None:
    """The settings that a command line gives, by name, exactly as typer would read them.

    None for what typer is to answer: a request for help, a mistake, and values attached to short flags.
    """
    settings = options_of(options_class)
    given: dict[str, Any] = {}
    try:
        for setting, flag, text in said_in(settings, arguments):
            if setting.kind is bool:
                if text is not None:
                    return None
                given[setting.name] = flag in setting.flags
            elif setting.is_repeated:
                given[setting.name] = (*given.get(setting.name, ()), text)
            else:
                given[setting.name] = _value(setting, text or "")
    except OptionError:
        return None
    return None if any(each.required and each.name not in given for each in settings) else given


def _value(setting: Setting, text: str) -> Any:
    """What the text behind a flag means. Raises OptionError."""
    if setting.kind in NUMBERS:
        return read_number(setting.kind, setting.label, text, setting.option.infinity)
    return read_list(typing.get_args(setting.kind)[0], setting.label, text) if setting.is_list else text
