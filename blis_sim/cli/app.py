"""The typer application. A command is made from its row when used; its errors become one line and an exit code."""

import errno
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer._click.core import Command, Parameter
from typer._click.exceptions import ClickException, NoSuchOption
from typer.core import TyperGroup

from blis_sim.cli.commands import COMMANDS, FIRST_STEPS, GROUPS, CommandRow, commands_in
from blis_sim.cli.search_path import explain_import_errors
from blis_sim.options import BlisError, ExclusionError, OptionError, options_from, options_of
from blis_sim.options.command_line import (
    FILE_LAYERS,
    HELP_ALL_FLAG,
    HELP_FLAGS,
    PLACES,
    HelpRequest,
    SettingOption,
    SettingsCommand,
    check_required,
    did_you_mean,
    given,
    no_such_option,
    split_config,
)
from blis_sim.options.option import Placed, spellings_of
from blis_sim.options.printing import printable

if TYPE_CHECKING:
    from blis_sim.options.settings_file import Layer

# Errors of the user and of the machine as one line and an exit code.

EXIT_INTERRUPTED = 130

_MOST_CHARACTERS = 1900
"""Most characters of an error message, which may quote a file at length."""
_OUT_OF_MEMORY_MESSAGES = ("failed to map segment", "annot allocate memory")
"""Messages of the dynamic loader when memory runs out."""
_RESOURCE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers for a resource of the machine, or of the user's limits, that is used up."""

REPORTED = (BlisError, ClickException, ImportError, KeyboardInterrupt, MemoryError, OSError)
"""Kinds of errors that the user or the machine may have caused."""


def exit_code_of(program: str, error: BaseException) -> int | None:
    """Print one line about an error that ended a command, and return the exit code; None for a bug, which is raised."""
    if isinstance(error, BlisError):
        return _print_error(program, str(error), code=error.exit_code)
    if isinstance(error, ClickException):
        return _print_error(program, error.format_message(), code=error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if _is_out_of_memory(error):
        return _print_error(program, "out of memory", code=1)
    if not isinstance(error, OSError):
        return None
    if error.errno in _RESOURCE_ERRNOS:
        return _print_error(program, os.strerror(error.errno).lower(), code=1)
    return _cannot_print(program, error) if _is_about_stdout(error) else None


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also while a library was imported."""
    while error is not None:
        is_refused = isinstance(error, ImportError) and any(each in str(error) for each in _OUT_OF_MEMORY_MESSAGES)
        if is_refused or isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_about_stdout(error: OSError) -> bool:
    """Whether an error is of standard output: such errors name no file."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)


def _cannot_print(program: str, error: OSError) -> int:
    # At exit Python would flush the rest once more, and print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # a closed reader, as with `| head`, is no error
        _print_error(program, f"cannot write to standard output: {error.strerror}", code=1)
    return 1


def _print_error(program: str, message: str, code: int) -> int:
    one_line = printable(" ".join(message.split()))
    if len(one_line) > _MOST_CHARACTERS:
        one_line = f"{one_line[:_MOST_CHARACTERS]}..."
    with suppress(OSError):  # standard error is closed
        sys.stderr.write(f"{program}: error: {one_line}\n")
    return code


# typer's help pages without what they have no use for here.

_UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
"""Modules of rich that typer's help imports, with the class it names. Our help has no Markdown, and shows no errors."""


def load_help() -> None:
    """Load typer's module for help with stand-ins for unused modules, whose import takes half of the time of a page."""
    stand_ins = {name: _stand_in(name, found) for name, found in _UNUSED.items() if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        import typer.rich_utils  # noqa: F401
    finally:
        for name in stand_ins:
            del sys.modules[name]


def _stand_in(name: str, found: str) -> ModuleType:
    module = ModuleType(name)
    setattr(module, found, type(found, (), {}))
    return module


# The typer application. A command is made from its row, with parameters from its settings, when it is used.

FORMAT_VARIABLE, BLIS_FORMAT = "BLIS_FORMAT", "blis"
"""The environment variable for what commands print, and the name of BLIS's own format and engine."""

_STDERR = 2
_MOST_BYTES = 1 << 20
"""Bytes of `pyproject.toml` that are searched for settings."""
_IS_SHORT = "blis.is_short"
"""Whether the help is of the settings that are used most."""


class SimulatorCommand(SettingsCommand):
    """A command of the table. Its module is imported when its parameters are asked for, and not to list it."""

    def __init__(self, name: str, row: CommandRow) -> None:
        self.row = row
        self.arguments: list[str] = []
        self.ignore_unknown_options = row.passes_flags_on
        examples = ["\n".join(("Examples:", *(f"$ {each}" for each in row.examples)))] if row.examples else []
        super().__init__(name=name, help="\n\n".join((row.help, *examples)), first=row.first)

    @property
    def module(self) -> ModuleType:
        """The module of the command."""
        return importlib.import_module(self.row.module)

    @property
    def options(self) -> type:
        """The options class of the command."""
        return _options_class(self.row)

    def get_params(self, ctx: Any) -> list[Parameter]:
        """The parameters, in the help those that it shows."""
        if not self.params:
            self.params = self.parameters(options_of(self.options), reads_file=not self.row.has_own_config)
        if not ctx.meta.get(_IS_SHORT) or not self.row.first:
            return self.params
        return [each for each in self.params if _is_in_short_help(each, self.row.first)]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse a command line. What is wrong with it is one line and an exit code."""
        self.arguments = list(args)
        with _reporting_errors(_command_path(parent, info_name)), self._locating():
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line of this product or of the program whose syntax the command takes, or show the help."""
        self.get_params(ctx)
        if ctx.resilient_parsing:  # for a shell, which completes
            return super().parse_args(ctx, args)
        try:
            if ctx.parent is not None:  # else it is a program of another name
                args = self._without_file(ctx, args)
            if os.environ.get(FORMAT_VARIABLE):
                args = _with_format(self.options, args, ctx.command_path)
        except OptionError:
            if not any(flag in args for flag in (*HELP_FLAGS, HELP_ALL_FLAG)):
                raise  # help shows no values, and who mends a file or a variable may need it
        asks_for_help = args[:1] in ([HELP_ALL_FLAG], *([flag] for flag in HELP_FLAGS))
        if self.row.has_other_syntax and not asks_for_help:
            args = self.module.rewritten(args)
        try:
            rest = super().parse_args(ctx, args)
        except HelpRequest as request:
            _show_help(ctx, is_short=not request.of_all)
        ctx.obj = given(ctx)
        check_required(self.options, ctx.obj.values)
        return rest

    def _without_file(self, ctx: Any, args: list[str]) -> list[str]:
        """Return a command line without the flag that names a file of settings, whose values the context gets."""
        named, rest = (None, args) if self.row.has_own_config else split_config(args)
        path = named or os.environ.get(FILE_VARIABLE) or _file_of_folder()
        if path is None:
            return rest
        from blis_sim.options.settings_file import layers_of_file, values_of

        commands = {_command_words(name): name for name in commands_in("")}
        layers = layers_of_file(path, _command_words(ctx.command_path)[1:], commands)
        rows = {words: COMMANDS[name] for words, name in commands.items()}
        _check_known(layers, [self.row, *(row for row in rows.values() if row != self.row)])
        for num_words, layer in enumerate(layers[1:], start=1):
            own = _command_words(ctx.command_path)[1:][:num_words]
            _check_own(layer, own, [row for words, row in rows.items() if words[:num_words] == own])
        ctx.meta[FILE_LAYERS] = layers
        settings = options_of(self.options)
        if self.row.passes_flags_on:
            settings += options_of(_options_class(COMMANDS["run"]))
        if named is None and (found := values_of(settings, layers)):
            keys = ", ".join(each.key for each in found.values())
            with suppress(OSError):
                sys.stderr.write(f"{ctx.command_path}: from {path}: {keys} (flags and variables win over these)\n")
        return rest

    def invoke(self, ctx: Any) -> int:
        """Run the command and return its exit code. What ends it is one line and an exit code."""
        places = ctx.meta.get(PLACES, {})
        with _reporting_errors(ctx.command_path), self._locating(places):
            code = self._run(ctx.obj.values, places, ctx.command_path)
            sys.stdout.flush()
            return code

    def _run(self, values: dict[str, Any], places: Mapping[str, Placed], program: str) -> int:
        try:
            code: int = self.module.run(self._options(values, places, program))
        except BlisError as error:
            if self.row.has_exit_codes:
                error.exit_code = self.module.exit_code_of(error)
            raise
        return code

    def _options(self, values: dict[str, Any], places: Mapping[str, Placed], program: str) -> Any:
        """The options with these values; where two exclude each other, a file gives way to a variable, both to a flag.

        Raises BlisError.
        """
        try:
            return options_from(self.options, **values)
        except ExclusionError as error:
            excluding = [each for each in options_of(self.options) if not error.flags.isdisjoint(each.flags)]
            given = [each for each in excluding if each.name in values]
            given.sort(key=lambda each: _weight(places.get(each.label)))
            if len({_weight(places.get(each.label)) for each in given}) < 2:
                raise
            weakest, *_, strongest = given
            with suppress(OSError):
                sys.stderr.write(f"{program}: {places[weakest.label].place} gives way to {strongest.label}\n")
            others = {name: each for name, each in values.items() if name != weakest.name}
            return self._options(others, places, program)

    @contextmanager
    def _locating(self, places: Mapping[str, Placed] = MappingProxyType({})) -> Iterator[None]:
        """Name the variable, or the file and key, of the setting that an error is about, where one gave it."""
        try:
            yield
        except BlisError as error:
            place = _place_of(str(error), places)
            if place is None and self.row.takes_settings:
                place = self.module.locate_invalid_setting(self.arguments, str(error))
            if place is None:
                raise
            located = OptionError(f"{place}: {error}")
            located.exit_code = error.exit_code
            raise located from error


class CommandGroup(TyperGroup):
    """The commands whose names begin with a word, or all of them, each made when it is asked for."""

    word = ""
    _has_flags = True
    """Whether its own flags are read: typer loads pydantic, which takes 50 ms, to read flags that are not there."""

    def get_params(self, ctx: Any) -> list[Parameter]:
        """The flags of the group."""
        return super().get_params(ctx) if self._has_flags else []

    def list_commands(self, ctx: Any) -> list[str]:
        """The next words of the names of commands."""
        names = [name.removeprefix(f"{self.word} ") for name in commands_in(self.word)]
        return list(dict.fromkeys(name if " --" in name else name.split()[0] for name in names))

    def get_command(self, ctx: Any, cmd_name: str) -> Command | None:
        """Make the command, or the group, of a name; None for another name."""
        name = f"{self.word} {cmd_name}".strip()
        if name in GROUPS:
            group = CommandGroup(name=cmd_name, help=GROUPS[name], context_settings=_HELP)
            group.word = name
            return group
        return SimulatorCommand(cmd_name, COMMANDS[name]) if name in COMMANDS else None

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the flags of the group. What is wrong with them is one line and an exit code."""
        with _reporting_errors(_command_path(parent, info_name)):
            try:
                return super().make_context(info_name, args, parent, **extra)
            except NoSuchOption as error:
                raise no_such_option(self, error.option_name) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the flags of the group; without a command it shows its help."""
        args = args if args or ctx.resilient_parsing else [HELP_FLAGS[0]]
        self._has_flags = not args or args[0].startswith("-")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group."""
        load_help()
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        with _reporting_errors(ctx.command_path):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Find the command. A second word that is a flag, as in `calibrate --watch`, may stand anywhere."""
        word, *rest = args
        for place, flag in enumerate(rest):
            if flag.startswith("--") and f"{word} {flag}" in tuple(COMMANDS):
                return f"{word} {flag}", self.get_command(ctx, f"{word} {flag}"), rest[:place] + rest[place + 1 :]
        command = self.get_command(ctx, word)
        if command is None and not ctx.resilient_parsing:
            raise OptionError(_unknown_command_message(word, self.list_commands(ctx)))
        return word, command, rest


_HELP = {"help_option_names": list(reversed(HELP_FLAGS))}

app = typer.Typer(
    name="blis",
    cls=CommandGroup,
    context_settings=_HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(_version_text())
        raise typer.Exit


@app.callback(
    help=(
        "Develop and test around vLLM without a GPU, and measure how close the simulation is.\n\n"
        "Serve a vLLM look-alike, plan and predict deployments, record any server, replay the recording, compare the "
        "two.\n\n" + "\n".join(("First steps:", *(f"$ {each}" for each in FIRST_STEPS)))
    )
)
def _blis(
    _version_flag: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Name the flags of `blis` itself."""


def run_program(arguments: list[str], program: str, row: CommandRow | None = None) -> int:
    """Run `blis`, or a program that is the single command of a row, with these arguments and return the exit code."""
    # Open closed standard streams on the null device; else the first opened file would take their descriptor.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it lives as long as the process)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    command = typer.main.get_command(app) if row is None else SimulatorCommand(program, row)
    if arguments[:1] == ["help"] and row is None:  # `blis help serve` is `blis serve --help`
        arguments = [*arguments[1:], "--help"]
    try:
        code: int | None = command.main(arguments, prog_name=program, standalone_mode=False)
    except SystemExit as end:  # of completion
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code or 0


@contextmanager
def _reporting_errors(program: str) -> Iterator[None]:
    """Turn an error of the user or of the machine into one line and an exit code."""
    try:
        with explain_import_errors():
            yield
    except REPORTED as error:
        code = exit_code_of(program, error)
        if code is None:
            raise
        raise typer.Exit(code) from error


def _weight(placed: Placed | None) -> int:
    """How much a value counts beside one that it excludes: of a file least, of a variable more, of a flag most."""
    return 2 if placed is None else int(not placed.key)


def _place_of(message: str, places: Mapping[str, Placed]) -> str | None:
    """The variable, or the file and key, of the value that an error message is about; None where a flag gave it."""
    label = message.partition(" ")[0].rstrip(":")
    if label in places:
        return places[label].place
    texts = (each for each in places.values() if isinstance(each.value, str) and each.value)
    return next((each.place for each in texts if repr(each.value) in message), None)


def _show_help(ctx: Any, *, is_short: bool) -> NoReturn:
    load_help()
    ctx.meta[_IS_SHORT] = is_short
    sys.stdout.write(ctx.get_help())
    sys.stdout.flush()
    raise typer.Exit


def _is_in_short_help(parameter: Parameter, first: tuple[str, ...]) -> bool:
    if not isinstance(parameter, SettingOption):
        return True
    return parameter.setting.required or parameter.setting.flags[0] in first


def _options_class(row: CommandRow) -> type:
    found: type = getattr(importlib.import_module(row.module), row.options)
    return found


def _command_words(name: str) -> tuple[str, ...]:
    """Return the words of a command as keys of a file have them."""
    return tuple(word.lstrip("-") for word in name.split())


FILE_VARIABLE = "BLIS_CONFIG"
"""Variable of the environment with the file of settings."""


def _file_of_folder() -> str | None:
    """Return the file of the working folder that has settings. What reads it is loaded where there is one."""
    if os.path.isfile("blis.toml"):
        return "blis.toml"
    with suppress(OSError), open("pyproject.toml", "rb") as file:
        if b"[tool.blis" in file.read(_MOST_BYTES):
            return "pyproject.toml"
    return None


def _check_known(layers: "Sequence[Layer]", rows: Sequence[CommandRow]) -> None:
    """Raise OptionError for a key of a file that names a setting of no command; the first row is tried first."""
    unknown = {key: each for layer in layers for key, each in layer.items()}
    known: dict[str, None] = {}
    for row in rows:
        if not unknown.keys() - known.keys():
            return
        known |= _names_of(row)
    for key in unknown.keys() - known.keys():
        alike = did_you_mean(key, _names_of(rows[0])) or did_you_mean(key, known)
        raise OptionError(f"{unknown[key].place}: no setting has this name{alike}")


def _check_own(layer: "Layer", words: Sequence[str], rows: Sequence[CommandRow]) -> None:
    """Raise OptionError for a key of a file that no command with the words above the key has as a setting."""
    if any(row.passes_flags_on for row in rows):
        rows = [*rows, *(COMMANDS[name] for name in ("run", "replay"))]  # which they repeat
    known = {name for row in rows for name in _names_of(row)}
    for key, found in layer.items():
        if key not in known:
            command = " ".join(("blis", *words))
            raise OptionError(f"{found.place}: {command} has no setting of this name{did_you_mean(key, known)}")


def _names_of(row: CommandRow) -> dict[str, None]:
    return dict.fromkeys(each for setting in options_of(_options_class(row)) for each in spellings_of(setting))


def _command_path(parent: Any, name: str | None) -> str:
    return " ".join(filter(None, (parent.command_path if parent is not None else "", name)))


def _with_format(options_class: type, arguments: list[str], program: str) -> list[str]:
    """Return a command line with the format that the environment asks for, for commands that can print BLIS's.

    BLIS's format comes with BLIS's engine. Flags of the command line win over both. Raises OptionError.
    """
    settings = {setting.name: setting for setting in options_of(options_class)}
    form, printed = os.environ[FORMAT_VARIABLE], settings.get("format")
    if printed is None or printed.option.positional or "--json" in arguments:
        return arguments
    if form not in printed.option.choices:
        if "engine" not in settings or form == BLIS_FORMAT:
            return arguments  # a format of simulations
        raise OptionError(f"{FORMAT_VARIABLE} must be one of {', '.join(printed.option.choices)}, got {form!r}")
    added = [printed.flags[0], form]
    if form == BLIS_FORMAT and "engine" in settings:
        added += [settings["engine"].flags[0], BLIS_FORMAT]
    with suppress(OSError):
        sys.stderr.write(f"{program}: {' '.join(added)}, as {FORMAT_VARIABLE} says (flags win over these)\n")
    return [*added, *arguments]


def _unknown_command_message(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    alike = get_close_matches(word.lower(), known, n=1)
    question = f", did you mean {alike[0]!r}?" if alike else ","
    return f"unknown command {word!r}{question} known are {', '.join(known)}"


def _version_text() -> str:
    from importlib.metadata import version
    from importlib.util import find_spec

    core = find_spec("blis_sim.engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    return f"{version('blis-mockserve')}{' (compiled engine)' if is_compiled else ''}"
