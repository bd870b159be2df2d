"""From an options dataclass to a typer command: each setting becomes a flag or an argument."""

import inspect
import itertools
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from blis_options import options_of
from blis_options.option import Setting
from blis_options.text import NUMBERS, read_list, read_number, single_type


def command_function(
    options_class: type, run: Callable[[Any], int], arguments: Sequence[str] | None = None
) -> Callable[..., None]:
    """A function that typer turns into flags: it builds the options, runs the command, exits with its code.

    When it is known with which `arguments` it will be called, only flags that matter to them are made: each takes typer
    a millisecond.
    """

    def command(**values: Any) -> None:
        # typer gives repeated arguments as a list, and options are immutable.
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        code = run(options_class(**given))
        if code:
            raise typer.Exit(code)

    settings = options_of(options_class)
    if arguments is not None:
        settings = _that_matter(settings, arguments)
    # typer reads flags off a signature; this one is the settings table.
    signature = inspect.Signature([_parameter(setting) for setting in settings])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return command


def _that_matter(settings: list[Setting], arguments: Sequence[str]) -> list[Setting]:
    """Those that are given or must be. All of them if something else is given: a request for help, or a mistake."""
    given = {argument.partition("=")[0] for argument in arguments if argument.startswith("-") and not _number(argument)}
    if not given.issubset(itertools.chain.from_iterable(map(_spellings, settings))):
        return settings
    return [
        each for each in settings if each.required or each.option.positional or not given.isdisjoint(_spellings(each))
    ]


def _number(argument: str) -> bool:
    return argument[1:2].isdigit()


def _spellings(setting: Setting) -> tuple[str, ...]:
    """All flags of a setting, that of the opposite included."""
    flags = setting.flags
    return (*flags, f"--no-{flags[0].removeprefix('--')}") if setting.type is bool else flags


def _parameter(setting: Setting) -> inspect.Parameter:
    kind = single_type(setting.type)
    known = setting.option
    extra: dict[str, Any] = {"help": _help(setting), "show_default": setting.default not in (None, "", ())}
    if known.metavar is not None:
        extra["metavar"] = known.metavar
    if _is_repeated(setting):
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    elif typing.get_origin(kind) is tuple:
        (element, _) = typing.get_args(kind)
        extra["parser"] = _list_parser(element, setting.label)
        extra.setdefault("metavar", "LIST")
        kind = str
    elif kind in NUMBERS:
        extra["parser"] = _number_parser(kind, setting.label, known.infinity)
        extra.setdefault("metavar", "N" if kind is int else "X")
    if setting.option.positional:
        info = typer.Argument(**extra)
    else:
        flags = setting.flags
        if kind is bool:
            flags = (f"{flags[0]}/{_spellings(setting)[-1]}", *flags[1:])
        info = typer.Option(*flags, hidden=known.hidden, **extra)
    optional = setting.default is None and not setting.required
    default = inspect.Parameter.empty if setting.required else _default(setting)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[(kind | None) if optional else kind, info],
    )


def _is_repeated(setting: Setting) -> bool:
    """Whether each value is given by itself: as an argument of its own, or with the flag again."""
    is_list = typing.get_origin(single_type(setting.type)) is tuple
    return is_list and (setting.option.positional or setting.option.repeatable)


def _default(setting: Setting) -> Any:
    """Lists are parsed from text, so their default is text as well; repeated arguments are lists."""
    if _is_repeated(setting):
        return list(setting.default)
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    return setting.default


def _help(setting: Setting) -> str:
    known = setting.option
    return f"{known.help} One of: {', '.join(known.choices)}." if known.choices else known.help


def _number_parser(kind: Callable[[Any], Any], label: str, infinity: str | None) -> Callable[[Any], Any]:
    return lambda text: read_number(kind, label, text, infinity)


def _list_parser(element: Callable[[str], Any], label: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda text: text if isinstance(text, tuple) else read_list(element, label, text)
