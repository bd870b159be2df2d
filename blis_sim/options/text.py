"""Values of settings from the text of users: after a flag, in a YAML file, or as JSON."""

import json
import math
import typing
from collections.abc import Callable
from typing import Any

from blis_sim.options.errors import OptionError
from blis_sim.options.option import Setting, options_of


def load_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, too, where values nest deeper than the parser follows."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("values nest too deep") from None


NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NONE = "none"


def read_number(kind: Callable[[Any], Any], label: str, text: Any, infinity: str | None = None) -> Any:
    """A number of this kind, or the word for one without limit. Raises OptionError."""
    if infinity is not None and text == infinity:
        return math.inf
    try:
        return kind(text)
    except ValueError as error:
        expected = NUMBERS[kind] if infinity is None else f"{NUMBERS[kind]} or {infinity}"
        raise OptionError(f"{label} must be {expected}, got {text!r}") from error


def read_list(element: Callable[[str], Any], label: str, text: str) -> tuple[Any, ...]:
    """A list, comma-separated or in JSON. Raises OptionError."""
    try:
        parts = load_json(text) if text.startswith("[") else text.split(",")
        return tuple(element(part.strip()) for part in map(str, parts) if part.strip())
    except ValueError as error:
        raise OptionError(f"{label} must be a list, comma-separated or in JSON, got {text!r}") from error


def value_of_flag(setting: Setting, text: str) -> Any:
    """Return the value of a text behind a flag, for a setting that is no switch. Raises OptionError."""
    if setting.kind in NUMBERS:
        return read_number(setting.kind, setting.label, text, setting.option.infinity)
    return read_list(typing.get_args(setting.kind)[0], setting.label, text) if setting.is_list else text


def value_of(setting: Setting, text: str) -> Any:
    """Return the value of a text for a setting; `none` means "not given" where that is possible. Raises OptionError."""
    kind = setting.kind
    if text.lower() == _NONE and kind is not setting.type:
        return None
    if kind is bool:
        if text.lower() not in _SWITCHES:
            raise OptionError(f"{setting.label} must be true or false, got {text!r}")
        return _SWITCHES[text.lower()]
    if kind in NUMBERS:
        return read_number(kind, setting.label, text, setting.option.infinity)
    if setting.is_list:
        return read_list(typing.get_args(kind)[0], setting.label, text)
    return text


def value_of_yaml(setting: Setting, value: Any) -> Any:
    """Return the value of a YAML value for a setting. Raises OptionError."""
    if isinstance(value, list):
        return value_of(setting, json.dumps(value))
    if isinstance(value, bool):
        return value_of(setting, str(value))
    return value_of(setting, _NONE if value is None else str(value))


def setting_named(options_class: type, name: str) -> Setting:
    """The setting of this name, or with this flag, dashes or underscores alike. Raises OptionError."""
    spelling = name.replace("_", "-").removeprefix("--")
    for setting in options_of(options_class):
        spellings = {
            setting.name.replace("_", "-"),
            *(flag.removeprefix("--") for flag in (*setting.flags, *setting.former_flags)),
        }
        if spelling in spellings:
            return setting
    raise OptionError(f"no setting is called {name!r}")
