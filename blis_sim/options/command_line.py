"""Command lines of an options class: a typer command whose parameters are its settings."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, NoReturn

import typer
from typer._click.core import Command, Parameter
from typer._click.exceptions import BadOptionUsage, NoSuchOption, UsageError
from typer._click.globals import get_current_context
from typer._click.parser import _OptionParser, _ParsingState
from typer._coercion import bool_flag_type_descriptor
from typer.core import TyperArgument, TyperCommand, TyperOption

from blis_sim.options.option import (
    NUMBERS,
    OptionError,
    Placed,
    Setting,
    options_of,
    parse_flag_value,
    parse_value,
    parse_yaml_value,
)

# Command lines of an options class. The command that typer parses them with is made when a command line is parsed.


@dataclass(slots=True)
class CommandLine:
    """A parsed command line: values by name of the setting, and a request for help."""

    values: dict[str, Any] = field(default_factory=dict)
    requests_help: bool = False
    places: dict[str, str] = field(default_factory=dict)
    """The variable, or the file and its key, of each value that no flag gave."""


def parse_command_line(
    options_class: type,
    arguments: Sequence[str],
    read: Callable[[Setting, str], Any] = parse_flag_value,
    other_flags: Iterable[str] = (),
    *,
    passes_flags_on: bool = False,
    reads_environment: bool = True,
    file: Sequence[Mapping[str, Placed]] | None = None,
) -> CommandLine:
    """Parse a command line, each value by `read`; a command line with a help flag has no values.

    A setting without a flag has the value of its variable of the environment, such as BLIS_MAX_NUM_SEQS. Without a
    variable it has that of `file`, by default the file of settings of the command that runs.

    `other_flags` are further flags, which a message on a misspelt flag may suggest. With `passes_flags_on` unknown
    flags are arguments. Raises OptionError for invalid arguments. Bounds are checked where the options are made.
    """

    try:
        command = command_of(options_class, passes_flags_on)
        return command.command_line(arguments, read, other_flags, reads_environment=reads_environment, file=file)
    except HelpRequest:
        return CommandLine(requests_help=True)


def split_command_line(
    settings: Sequence[Setting], others: Iterable[Setting], arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Split a command line into the words for `settings`, and those for flags that only `others` have.

    Arguments without a flag belong to `settings`. A command line with a help flag is not split. Raises OptionError for
    a flag of neither.
    """

    taken = {flag for setting in settings for flag in setting.spellings}
    further = [each for each in others if not each.option.positional and taken.isdisjoint(each.spellings)]
    command = SettingsCommand([*settings, *further])
    try:
        values = command.command_line(arguments, _unread, reads_environment=False).values
    except HelpRequest:
        return list(arguments), []
    given = [each for each in (*settings, *further) if each.name in values]
    flags = {
        each.name: [word for text in _listed(values[each.name]) for word in words_of(each, text)]
        for each in given
        if not each.option.positional
    }
    own = [word for each in settings for word in flags.get(each.name, ())]
    other = [word for each in further for word in flags.get(each.name, ())]
    words = [word for each in given if each.option.positional for word in _listed(values[each.name])]
    return [*own, *(["--"] if any(each.startswith("-") for each in words) else []), *words], other


def _unread(setting: Setting, text: str) -> Any:
    return (text,) if setting.is_list else text


def words_of(setting: Setting, value: Any) -> list[str]:
    """Return the flag of a setting with a value, as the words of a command line."""
    if isinstance(value, bool):
        return [setting.spellings[0 if value else -1]]
    if setting.is_repeated:
        return [word for each in _listed(value) for word in (setting.flags[0], str(each))]
    return [setting.flags[0], ",".join(map(str, _listed(value)))]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def split_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the file that `--config` names last, and the command line without the flag. Raises OptionError."""
    path: str | None = None
    rest: list[str] = []
    left = iter(arguments)
    for word in left:
        flag, equals, text = word.partition("=")
        if word == "--":
            return path, [*rest, word, *left]
        if flag != CONFIG_FLAG:
            rest.append(word)
        elif (path := text if equals else next(left, "")) == "":
            raise OptionError(f"{CONFIG_FLAG} must be given a value")
    return path, rest


def check_required(options_class: type, values: Mapping[str, Any]) -> None:
    """Raise OptionError for the first setting without a default that has no value."""
    for setting in options_of(options_class):
        if setting.required and setting.name not in values:
            raise OptionError(f"{setting.label} must be given")


def flags_of(options_class: type) -> set[str]:
    """Every flag that a command reads but those that turn a switch off."""
    return {flag for setting in options_of(options_class) for flag in setting.flags}


def flags_in_environment(options_class: type) -> set[str]:
    """Every flag of a setting whose variable of the environment is set."""
    known = options_of(options_class)
    return {flag for each in known if os.environ.get(variable_of(each) or "") for flag in each.spellings}


# A typer command whose parameters are the settings of an options class.
#
# typer parses, completes and shows help; the types, bounds and words of values are those of the settings, so that a
# flag, a file and the API refuse the same value in the same words. typer's parser and errors have no public names:
# the dependency is bounded to the releases that have these.

DEFAULT_HEADING = "Options"
"""Heading of settings without one."""
MOST_USED = "Most used"
"""Heading of the settings that a command shows first."""
HELP_HEADING = "Help"
HELP_FLAGS = ("--help", "-h")
HELP_ALL_FLAG = "--help-all"
CONFIG_FLAG = "--config"
"""The flag that names a file of settings. It is taken away before a command line is parsed."""
FILE_HELP = "Settings in YAML, JSON or TOML; flags and variables win over these. Default: blis.toml here."

_DESCRIPTOR = bool_flag_type_descriptor()
"""typer's type of a parameter; values are read by settings, and completed by their own names."""
_READ, _OTHER_FLAGS = "blis.read", "blis.other_flags"
_IGNORES_ENVIRONMENT = "blis.ignores_environment"
FILE_LAYERS, PLACES = "blis.file_layers", "blis.places"
"""Names in a context: the values of the file of settings, and by label the places of values that no flag gave."""
_OWN_VARIABLES = ("BLIS_FORMAT",)
"""Variables of the environment that mean more than one setting."""


class HelpRequest(Exception):  # noqa: N818 (it is no error)
    """A command line asks for help. `of_all` settings, or of those that are used most."""

    def __init__(self, of_all: bool) -> None:
        super().__init__()
        self.of_all = of_all


class _PlacedParameter(Parameter):
    """A parameter whose value may come from a variable of the environment, or from the file of settings."""

    setting: Setting

    @property
    def help(self) -> str | None:
        """The text of the setting, with typer's markup turned off."""
        from rich.markup import escape

        return escape(help_of(self.setting))

    @help.setter
    def help(self, text: str | None) -> None:
        """typer gives the text of its caller, which is none."""

    def value_from_envvar(self, ctx: Any) -> Placed | None:
        """Return the text of the variable; None without one."""
        text = None if ctx.meta.get(_IGNORES_ENVIRONMENT) else self.resolve_envvar_value(ctx)
        return None if text is None else Placed(text, str(self.envvar))

    def process_value(self, ctx: Any, value: Any) -> Any:
        """Return the value of a text, or of the texts of a setting that may be repeated. Raises OptionError."""
        if not isinstance(value, Placed):
            return _read(self.setting, ctx, value)
        ctx.meta.setdefault(PLACES, {})[self.setting.label] = value
        try:
            return parse_yaml_value(self.setting, value.value)
        except OptionError as error:
            raise OptionError(f"{value.place}: {error}") from error


class SettingOption(_PlacedParameter, TyperOption):
    """A setting as a flag. Its help is written when it is shown."""

    def __init__(self, setting: Setting, heading: str) -> None:
        self.setting = setting
        is_switch = setting.kind is bool
        off = setting.spellings[-1] if is_switch else ""
        super().__init__(
            param_decls=[setting.name, *setting.flags],
            type_descriptor=_DESCRIPTOR,
            required=setting.required,
            metavar="" if is_switch else metavar_of(setting),
            is_flag=is_switch,
            multiple=setting.has_items,
            hidden=setting.option.hidden,
            envvar=variable_of(setting),
            rich_help_panel=heading,
            autocompletion=None if is_switch else _offered(setting),
        )
        self._off = off
        if is_switch and setting.default is not False:
            self.secondary_opts = [off]

    def add_to_parser(self, parser: _OptionParser, ctx: Any) -> None:
        """Let typer's parser know the flags, those that turn a switch off included."""
        if self._off:
            parser.add_option(self, self.opts, self.name, "store_const", const=True)
            parser.add_option(self, [self._off], self.name, "store_const", const=False)
        else:
            super().add_to_parser(parser, ctx)


class SettingArgument(_PlacedParameter, TyperArgument):
    """A setting as an argument without a flag."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        super().__init__(
            param_decls=[setting.name],
            type_descriptor=_DESCRIPTOR,
            required=setting.required,
            nargs=-1 if setting.is_repeated else 1,
            metavar=setting.option.metavar or setting.label,
            hidden=setting.option.hidden,
            envvar=variable_of(setting),
            show_envvar=False,
            autocompletion=_offered(setting),
        )

    def display_type_rich(self, ctx: Any) -> str | None:
        """Return no type: the name of an argument says what it is."""
        return None


def _help_option(flags: Sequence[str], of_all: bool, text: str) -> TyperOption:
    """Return a flag that asks for help."""

    def ask(ctx: Any, _option: Any, is_given: bool) -> None:
        if is_given and not ctx.resilient_parsing:
            raise HelpRequest(of_all)

    return _unread_option(flags, text, is_flag=True, is_eager=True, metavar="", callback=ask)


def _unread_option(flags: Sequence[str], text: str, **more: Any) -> TyperOption:
    """Return a flag that is no setting. Its default keeps typer from loading pydantic to read a value."""
    shown: dict[str, Any] = {"type_descriptor": _DESCRIPTOR, "rich_help_panel": HELP_HEADING, "help": text}
    return TyperOption(param_decls=list(flags), default=False, expose_value=False, **shown, **more)


class _Parser(_OptionParser):
    """typer's parser, which also takes `--switch=false` and `-o=text`."""

    def __init__(self, ctx: Any, options: Iterable[SettingOption]) -> None:
        super().__init__(ctx)
        self._flags = {flag: each for each in options for flag in each.setting.spellings}

    def _process_opts(self, arg: str, state: _ParsingState) -> None:
        flag, equals, text = arg.partition("=")
        option = self._flags.get(flag)
        if option is None:
            if self.ignore_unknown_options and not arg.startswith("--") and arg[:2] not in self._short_opt:
                state.largs.append(arg)  # a flag of one letter, which typer would take for several
            else:
                super()._process_opts(arg, state)
            return
        if equals and option.is_flag:
            if flag == option.setting.spellings[-1]:
                raise OptionError(f"{flag} takes no value, got {text!r}")
            state.opts[option.name] = parse_value(option.setting, text)
            state.order.append(option)
            return
        if equals:
            state.rargs.insert(0, text)
        super()._process_opts(flag, state)


class SettingsCommand(TyperCommand):
    """A command with a parameter for each setting."""

    def __init__(
        self,
        settings: Sequence[Setting] = (),
        *,
        name: str | None = None,
        first: Sequence[str] = (),
        **more: Any,
    ) -> None:
        super().__init__(name=name, add_help_option=False, **more)
        self.allow_extra_args = True  # the message on them is ours
        self.first = first
        if settings:
            self.params = self.parameters(settings)

    def parameters(self, settings: Sequence[Setting], *, reads_file: bool = False) -> list[Parameter]:
        """Arguments, the flags of `first`, all others below their headings, help, and the file of settings."""
        ranks = {flag: rank for rank, flag in enumerate(self.first)}
        known = [each for each in settings if not each.option.positional]
        in_front = sorted((each for each in known if each.flags[0] in ranks), key=lambda each: ranks[each.flags[0]])
        rest = [each for each in known if each.flags[0] not in ranks]
        rest.sort(key=lambda each: bool(each.path and each.heading))
        all_text = "Show all options and exit." if self.first else "Show this message, too."
        return [
            *(SettingArgument(each) for each in settings if each.option.positional),
            *(SettingOption(each, MOST_USED) for each in in_front),
            *(SettingOption(each, each.heading or DEFAULT_HEADING) for each in rest),
            _help_option(HELP_FLAGS, False, "Show this message and exit."),
            _help_option((HELP_ALL_FLAG,), True, all_text),
            *([_unread_option((CONFIG_FLAG,), FILE_HELP, metavar="FILE")] if reads_file else []),
        ]

    def make_parser(self, ctx: Any) -> _OptionParser:
        """typer's parser with the flags of the settings."""
        parser = _Parser(ctx, (each for each in self.params if isinstance(each, SettingOption)))
        for each in self.params:
            each.add_to_parser(parser, ctx)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line. Raises OptionError in the words of this product."""
        layers = None if ctx.meta.get(_IGNORES_ENVIRONMENT) else ctx.meta.get(FILE_LAYERS)
        if layers:
            from blis_sim.options.settings_file import values_of  # few commands run beside a file of settings

            ctx.default_map = values_of(
                [each.setting for each in self.params if isinstance(each, _PlacedParameter)], layers
            )
        try:
            rest = super().parse_args(ctx, args)
        except UsageError as error:
            self._refuse(ctx, error)
        if rest and not ctx.resilient_parsing:
            raise OptionError(f"unexpected argument: {rest[0]}")
        return rest

    def command_line(
        self,
        arguments: Sequence[str],
        read: Callable[[Setting, str], Any],
        other_flags: Iterable[str] = (),
        *,
        reads_environment: bool = True,
        file: Sequence[Mapping[str, Placed]] | None = None,
    ) -> CommandLine:
        """Return the values of a command line. Raises OptionError, and HelpRequest where a flag asks for help."""
        ctx = typer.Context(self)
        running = get_current_context(silent=True)
        meta = {} if running is None else running.meta
        ctx.meta[FILE_LAYERS] = meta.get(FILE_LAYERS) if file is None else file
        ctx.meta[PLACES] = meta.setdefault(PLACES, {})
        ctx.meta[_IGNORES_ENVIRONMENT] = not reads_environment
        ctx.meta[_READ], ctx.meta[_OTHER_FLAGS] = read, tuple(other_flags)
        self.parse_args(ctx, list(arguments))
        return given(ctx)

    def _refuse(self, ctx: Any, error: UsageError) -> NoReturn:
        if isinstance(error, NoSuchOption):
            raise no_such_option(self, error.option_name, ctx.meta.get(_OTHER_FLAGS, ())) from None
        if isinstance(error, BadOptionUsage):
            raise OptionError(f"{error.option_name} must be given a value") from None
        raise OptionError(error.format_message()) from None


@lru_cache(maxsize=64)
def command_of(options_class: type, passes_flags_on: bool) -> SettingsCommand:
    """Return a command that parses command lines of an options class, for which unknown flags may be arguments."""
    command = SettingsCommand(options_of(options_class))
    command.ignore_unknown_options = passes_flags_on
    return command


def given(ctx: Any) -> CommandLine:
    """Return the values of the settings that a parsed command line gives."""
    values = {
        name: value
        for name, value in ctx.params.items()
        if (source := ctx.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }
    labels = {each.name: each.setting.label for each in ctx.command.params if isinstance(each, _PlacedParameter)}
    placed = ctx.meta.get(PLACES, {})
    outside = [name for name in values if ctx.get_parameter_source(name).name in _OUTSIDE_COMMAND_LINE]
    places = {name: placed[labels[name]].place for name in outside}
    return CommandLine(values, places=places)


_OUTSIDE_COMMAND_LINE = ("ENVIRONMENT", "DEFAULT_MAP")
"""Sources of values that typer names so: variables, and the file of settings."""


def no_such_option(command: Command, flag: str, other_flags: Iterable[str] = ()) -> OptionError:
    """Return the error about an unknown flag, with the known flag that is most like it."""
    options = [each for each in command.params if isinstance(each, TyperOption)]
    known = [
        flag for each in options for flag in (each.setting.spellings if isinstance(each, SettingOption) else each.opts)
    ]
    return OptionError(f"no such option: {flag}{did_you_mean(flag, [*known, *other_flags])}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known one that is most like it, empty without any."""
    from difflib import get_close_matches  # a name that exists does without it

    (alike,) = get_close_matches(name, list(known), n=1) or ("",)
    return f", did you mean {alike}?" if alike else ""


def variable_of(setting: Setting) -> str | None:
    """The variable of the environment that has the value of a setting where no flag gives it."""
    name = f"BLIS_{setting.name.upper()}"
    return None if name in _OWN_VARIABLES else name


def _offered(setting: Setting) -> Callable[..., list[str]]:
    """Return the function that gives a shell the names that a setting may have; none lets it go on with files."""
    return lambda *_: list(filter(None, setting.option.names))


def metavar_of(setting: Setting) -> str:
    """The word for a value behind a flag."""
    name = "LIST" if setting.is_list and not setting.is_repeated else {int: "N", float: "X"}.get(setting.kind, "TEXT")
    return setting.option.metavar or name


def help_of(setting: Setting) -> str:
    """The text of a setting with its choices, and the default of a flag where the text does not tell it."""
    text, choices = setting.option.help, ", ".join(filter(None, setting.option.choices))
    text = f"{text} One of: {choices}." if choices else text
    if (
        setting.option.positional
        or setting.default in (None, "", ())
        or setting.default is False
        or re.search(r"\bdefault\b", text, re.I)
    ):
        return text
    return f"{text} [default: {_default(setting)}]"


def _default(setting: Setting) -> str:
    if setting.kind is bool:
        return "on"
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    return f"{setting.default:g}" if setting.kind in NUMBERS and abs(setting.default) < 1e6 else str(setting.default)


def _read(setting: Setting, ctx: Any, value: Any) -> Any:
    if value is None or value == ():
        return None
    if setting.is_repeated:
        return tuple(value)
    if isinstance(value, bool):
        return value
    read = ctx.meta.get(_READ, parse_flag_value)
    return _joined([read(setting, each) for each in value]) if setting.has_items else read(setting, value)


def _joined(values: Sequence[Any]) -> Any:
    """Return the items of the values that a flag has when it is given again and again."""
    if all(isinstance(each, tuple) for each in values):
        return tuple(chain.from_iterable(values))
    return ",".join(filter(None, values))
