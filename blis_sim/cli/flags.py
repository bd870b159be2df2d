"""From an options dataclass to a typer command: each setting becomes a flag or an argument.

Typer says what is wrong with a command line, and `blis_sim.cli.help` what would be right.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer

from blis_sim.cli.help import WIDEST, command_with_help
from blis_sim.options import OptionError, options_from, options_of
from blis_sim.options.option import Setting
from blis_sim.options.text import NUMBERS, read_list, read_number

CONTEXT = {"max_content_width": WIDEST}


def run_with_typer(
    options_class: type, run: Callable[[Any], int], help_text: str, arguments: list[str], program: str
) -> int:
    """Let typer read the arguments: it prints help, or runs the command. Returns the exit code. Raises OptionError."""
    app = new_app()
    cls = command_with_help(options_class)
    app.command(cls=cls, help=help_text, context_settings=CONTEXT)(command_function(options_class, run))
    return answer(app, arguments, program)


def new_app() -> typer.Typer:
    """One that prints plain text, and leaves mistakes to `answer`."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def answer(app: typer.Typer, arguments: list[str], program: str) -> int:
    """What typer makes of the arguments, as an exit code. Raises OptionError for a mistake."""
    try:
        result = typer.main.get_command(app).main(args=arguments, prog_name=program, standalone_mode=False)
    except typer.TyperException as error:
        message = error.format_message()
        # Typer's preface is left out: our messages name the flag themselves.
        raise OptionError(
            message.partition(": ")[2] if message.startswith("Invalid value for ") else message
        ) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


def command_function(options_class: type, run: Callable[[Any], int]) -> Callable[..., None]:
    """A function that typer turns into flags: it builds the options, runs the command, exits with its code."""

    def command(**values: Any) -> None:
        # typer gives repeated arguments as a list, and options are immutable.
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        code = run(options_from(options_class, **given))
        if code:
            raise typer.Exit(code)

    # typer reads flags off a signature; this one is the settings table.
    signature = inspect.Signature([_parameter(setting) for setting in options_of(options_class)])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return command


def _parameter(setting: Setting) -> inspect.Parameter:
    kind = setting.kind
    known = setting.option
    extra: dict[str, Any] = {} if known.metavar is None else {"metavar": known.metavar}
    if setting.is_repeated:
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    elif setting.is_list:
        (element, _) = typing.get_args(kind)
        extra["parser"] = _list_parser(element, setting.label)
        kind = str
    elif kind in NUMBERS:
        extra["parser"] = _number_parser(kind, setting.label, known.infinity)
    if setting.option.positional:
        info = typer.Argument(**extra)
    else:
        flags = setting.flags
        if kind is bool:
            flags = (f"{flags[0]}/{setting.spellings[-1]}", *flags[1:])
        info = typer.Option(*flags, hidden=known.hidden, **extra)
    optional = setting.default is None and not setting.required
    default = inspect.Parameter.empty if setting.required else _default(setting)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[(kind | None) if optional else kind, info],
    )


def _default(setting: Setting) -> Any:
    """Lists are parsed from text, so their default is text as well; repeated arguments are lists."""
    if setting.is_repeated:
        return list(setting.default)
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    return setting.default


def _number_parser(kind: Callable[[Any], Any], label: str, infinity: str | None) -> Callable[[Any], Any]:
    return lambda text: read_number(kind, label, text, infinity)


def _list_parser(element: Callable[[str], Any], label: str) -> Callable[[Any], tuple[Any, ...]]:
    return lambda text: text if isinstance(text, tuple) else read_list(element, label, text)
