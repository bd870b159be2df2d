"""From keyword arguments to the options of a command."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from blis_sim.options import OptionError, options_from, options_of
from blis_sim.options.option import Setting
from blis_sim.options.text import parse_yaml_value

Options = TypeVar("Options")

KINDS: Mapping[str, str] = {
    "run": "RunSettings",
    "replay": "ReplaySettings",
    "sweep": "SweepSettings",
    "plan": "PlanSettings",
    "calibrate": "CalibrateSettings",
    "fit": "FitSettings",
    "serve": "ServeSettings",
}
"""Command to the class of its keyword arguments."""

OMITTED_SETTINGS = (
    "json",
    "format",
    "log",
    "summarize_trace",
    "vary",
    "config",
    "compat",
    "adapter_reference",
    "sim_metrics_blind",
)
"""Settings of what a command prints, and of other ways to name what a function has a parameter for."""


def options_from_kwargs(options_class: type[Options], kwargs: Mapping[str, Any], function: str, **more: Any) -> Options:
    """The options of keyword arguments; `more` holds values by name as they are.

    Raises TypeError for a name that is no setting, and OptionError for a value that is not allowed.
    """
    return options_from(options_class, **values_from_kwargs([options_class], kwargs, function)[0], **more)


def values_from_kwargs(
    options_classes: Sequence[type], kwargs: Mapping[str, Any], function: str
) -> Sequence[dict[str, Any]]:
    """Return the values of keyword arguments by setting, in one mapping for each class; the first class wins.

    Raises TypeError for a name that is a setting of none, or given twice, and OptionError for a value that cannot be
    read.
    """
    tables = [_by_name(each) for each in options_classes]
    values: list[dict[str, Any]] = [{} for _ in tables]
    for name, value in kwargs.items():
        place = next((number for number, table in enumerate(tables) if name in table), None)
        if place is None:
            raise TypeError(_unexpected_argument(function, name, [each for table in tables for each in table]))
        setting = tables[place][name]
        if setting.name in values[place]:
            raise TypeError(f"{function}() got {setting.name!r} under two names, the second is {name!r}")
        values[place][setting.name] = value_from_python(setting, value)
    return values


def find_setting(options_class: type, name: str, function: str) -> Setting:
    """The setting of this name. Raises TypeError for a name that is no setting."""
    table = _by_name(options_class)
    if name not in table:
        raise TypeError(_unexpected_argument(function, name, list(table)))
    return table[name]


def value_from_python(setting: Setting, value: Any) -> Any:
    """The value of a setting for one of Python. Raises OptionError."""
    if value is None and setting.default is None:
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return json.dumps(value, default=str)
    if setting.option.open_to is not None and callable(value):
        return policy_reference(setting, value)
    if setting.is_list and not isinstance(value, str):
        return tuple(_items(setting, value))
    return parse_yaml_value(setting, value)


def _items(setting: Setting, value: Any) -> list[Any]:
    """The items of a list, texts as they are, commas included."""
    try:
        items = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in value]
    except TypeError:
        raise OptionError(f"{setting.label} must be a list, got {value!r}") from None
    if all(isinstance(each, str) for each in items):
        return items
    return list(parse_yaml_value(setting, items))


def policy_reference(setting: Setting, value: Callable[..., Any]) -> str:
    """The name by which a class or a function is found again, in other processes too. Raises OptionError."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        raise OptionError(
            f"{setting.label} must be a name, or a class or function at the top of a module, got {value!r}"
        )
    return f"{module}:{name}"


def signature_of(annotated: type, function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function with each of its keyword arguments, for help texts and completion."""
    own = inspect.signature(function)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        for name, kind in annotated.__annotations__.items()
        if name not in own.parameters
    ]
    return own.replace(parameters=[*named, *more])


def _by_name(options_class: type) -> dict[str, Setting]:
    """The settings by each of their names: their own, and those of their flags."""
    found: dict[str, Setting] = {}
    for setting in options_of(options_class):
        if setting.name not in OMITTED_SETTINGS:
            flags = [] if setting.option.positional else setting.flags
            names = (flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--"))
            found |= dict.fromkeys((setting.name, *names), setting)
    return found


def _unexpected_argument(function: str, name: str, known: Sequence[str]) -> str:
    alike = get_close_matches(name, known, n=1)
    question = f", did you mean {alike[0]!r}?" if alike else ""
    return f"{function}() got an unexpected keyword argument {name!r}{question}"
