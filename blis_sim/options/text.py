"""Values of settings from the text of users: the words of a command line, a YAML file, or JSON."""

import json
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from blis_sim.options.option import OptionError, Setting, options_of


def load_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, too, where values nest deeper than the parser follows."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("values nest too deep") from None


NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NONE = "none"


def parse_number(kind: Callable[[Any], Any], label: str, text: Any, infinity: str | None = None) -> Any:
    """A number of this kind, or the word for one without limit. Raises OptionError."""
    if infinity is not None and text == infinity:
        return math.inf
    try:
        return kind(text)
    except ValueError as error:
        expected = NUMBERS[kind] if infinity is None else f"{NUMBERS[kind]} or {infinity}"
        raise OptionError(f"{label} must be {expected}, got {text!r}") from error


def parse_list(element: Callable[[str], Any], label: str, text: str) -> tuple[Any, ...]:
    """A list, comma-separated or in JSON. Raises OptionError."""
    try:
        parts = load_json(text) if text.startswith("[") else text.split(",")
        return tuple(element(part.strip()) for part in map(str, parts) if part.strip())
    except ValueError as error:
        raise OptionError(f"{label} must be a list, comma-separated or in JSON, got {text!r}") from error


def parse_flag_value(setting: Setting, text: str) -> Any:
    """Return the value of a text behind a flag, for a setting that is no switch. Raises OptionError."""
    if setting.kind in NUMBERS:
        return parse_number(setting.kind, setting.label, text, setting.option.infinity)
    return parse_list(typing.get_args(setting.kind)[0], setting.label, text) if setting.is_list else text


def parse_value(setting: Setting, text: str) -> Any:
    """Return the value of a text for a setting; `none` means "not given" where that is possible. Raises OptionError."""
    kind = setting.kind
    if text.lower() == _NONE and kind is not setting.type:
        return None
    if kind is bool:
        if text.lower() not in _SWITCHES:
            raise OptionError(f"{setting.label} must be true or false, got {text!r}")
        return _SWITCHES[text.lower()]
    if kind in NUMBERS:
        return parse_number(kind, setting.label, text, setting.option.infinity)
    if setting.is_list:
        return parse_list(typing.get_args(kind)[0], setting.label, text)
    return text


def parse_yaml_value(setting: Setting, value: Any) -> Any:
    """Return the value of a YAML value for a setting. Raises OptionError."""
    if isinstance(value, list):
        return parse_value(setting, json.dumps(value))
    if isinstance(value, bool):
        return parse_value(setting, str(value))
    return parse_value(setting, _NONE if value is None else str(value))


def find_setting(options_class: type, name: str) -> Setting:
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


HELP, HELP_LETTER = "--help", "-h"

_LETTER = len("-o")

ParsedFlag: TypeAlias = tuple[Setting | None, str, str | None]
"""A setting, None for --help, the flag that names it, empty for an argument, and its text, None for a switch alone."""


@dataclass(slots=True)
class CommandLine:
    """A parsed command line: values by name of the setting, a note on each former flag, a request for help.

    `help_topic` is the text behind `--help=`.
    """

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    requests_help: bool = False
    help_topic: str = ""


def parse_command_line(
    options_class: type,
    arguments: Sequence[str],
    read: Callable[[Setting, str], Any] = parse_flag_value,
    other_flags: Iterable[str] = (),
) -> CommandLine:
    """Parse a command line, each value by `read`; a command line with a help flag has no values.

    `other_flags` are further flags, which a message on a misspelt flag may suggest. Raises OptionError for invalid
    arguments. Bounds are checked where the options are made.
    """
    settings = options_of(options_class)
    found = CommandLine()
    for setting, flag, text in _parsed_flags(settings, arguments, other_flags):
        if setting is None:
            return CommandLine(requests_help=True, help_topic=text or "")
        if flag in setting.former_flags:
            found.notes.append(f"{flag} is the former name of {setting.flags[0]}")
        if text is None:
            found.values[setting.name] = flag != setting.spellings[-1]
        elif setting.is_repeated:
            found.values[setting.name] = (*found.values.get(setting.name, ()), text)
        else:
            found.values[setting.name] = read(setting, text)
    return found


def check_required(options_class: type, values: Mapping[str, Any]) -> None:
    """Raise OptionError for the first setting without a default that has no value."""
    for setting in options_of(options_class):
        if setting.required and setting.name not in values:
            raise OptionError(f"{setting.label} must be given")


def flags_of(options_class: type) -> set[str]:
    """Every flag that a command reads but those that turn a switch off, former ones included."""
    return {flag for setting in options_of(options_class) for flag in (*setting.flags, *setting.former_flags)}


def _parsed_flags(
    settings: Sequence[Setting], arguments: Sequence[str], other_flags: Iterable[str]
) -> Iterator[ParsedFlag]:
    """Yield every named setting in order, arguments last. Raises OptionError for an argument of no setting.

    A flag takes the next word for its value, whatever that looks like; after `--` there are only arguments.
    """
    by_flag = {flag: each for each in settings if not each.option.positional for flag in each.spellings}
    by_flag |= {flag: each for each in settings for flag in each.former_flags}
    words: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            words += rest
        elif not argument.startswith("-") or argument == "-":
            words.append(argument)
        elif argument.partition("=")[0] == HELP or (argument == HELP_LETTER and argument not in by_flag):
            yield None, HELP, argument.partition("=")[2]
        else:
            yield _match_flag(by_flag, argument, rest, other_flags)
    positional = [each for each in settings if each.option.positional]
    if words and len(positional) == 1 and positional[0].is_repeated:
        positional *= len(words)
    if len(words) > len(positional):
        raise OptionError(f"unexpected argument: {words[len(positional)]}")
    yield from ((setting, "", word) for setting, word in zip(positional, words, strict=False))


def _match_flag(
    by_flag: Mapping[str, Setting], argument: str, rest: Iterator[str], other_flags: Iterable[str]
) -> ParsedFlag:
    """The setting that a word names, with its value: after `=`, next to a flag of one letter, or the next word."""
    flag, equals, value = argument.partition("=")
    text = value if equals else None
    if not flag.startswith("--") and len(argument) > _LETTER:
        flag, text = argument[:_LETTER], argument[_LETTER:].removeprefix("=")
    setting = by_flag.get(flag)
    if setting is None:
        from difflib import get_close_matches  # a flag that exists does without it

        named = argument.partition("=")[0]
        (alike,) = get_close_matches(named, [*by_flag, *other_flags], n=1) or ("",)
        raise OptionError(f"no such option: {named}{f', did you mean {alike}?' if alike else ''}")
    if setting.kind is not bool:
        return setting, flag, _next(rest, flag) if text is None else text
    if text is not None:
        raise OptionError(f"{flag} takes no value, got {text!r}")
    return setting, flag, None


def _next(rest: Iterator[str], flag: str) -> str:
    text = next(rest, None)
    if text is None:
        raise OptionError(f"{flag} must be given a value")
    return text
