"""What a command line says of settings."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from blis_sim.options.errors import OptionError
from blis_sim.options.option import Setting, options_of
from blis_sim.options.text import value_of

Said: TypeAlias = tuple[Setting, str, str | None]
"""A setting, the flag that names it, empty for an argument, and the text behind the flag, None for a switch alone."""


def said_in(settings: Sequence[Setting], arguments: Sequence[str]) -> Iterator[Said]:
    """All that is said, in order, arguments last. Raises OptionError for what belongs to no setting, or lacks a text.

    A flag takes what comes next for its value, whatever that looks like; behind `--` there are only arguments.
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
        else:
            flag, has_value, text = argument.partition("=")
            setting = by_flag.get(flag)
            if setting is None or (has_value and not flag.startswith("--")):
                raise OptionError(f"no such option: {flag}")
            yield setting, flag, text if has_value else None if setting.kind is bool else _next(rest, flag)
    positional = [each for each in settings if each.option.positional]
    if words and len(positional) == 1 and positional[0].is_repeated:
        positional *= len(words)
    if len(words) > len(positional):
        raise OptionError(f"unexpected argument: {words[len(positional)]}")
    yield from ((setting, "", word) for setting, word in zip(positional, words, strict=False))


def _next(rest: Iterator[str], flag: str) -> str:
    text = next(rest, None)
    if text is None:
        raise OptionError(f"{flag} must be given a value")
    return text


def values_of_flags(options_class: type, arguments: Sequence[str]) -> dict[str, Any]:
    """The settings that a command line gives, by name, in the spellings that YAML files have as well.

    Raises OptionError for what cannot be read. Bounds are checked where the options are made.
    """
    given: dict[str, Any] = {}
    for setting, flag, text in said_in(options_of(options_class), arguments):
        if text is None:
            given[setting.name] = flag in setting.flags
        elif setting.is_repeated:
            given[setting.name] = (*given.get(setting.name, ()), *value_of(setting, text))
        else:
            given[setting.name] = value_of(setting, text)
    return given
