"""The settings table: a dataclass field made by `option()` is one setting, one made by `section()` a group of them.

One row feeds the command-line flag, the YAML key, the documentation and the validation, so none can drift. A command's
options are a dataclass of sections and settings; names of settings are unique in it, whatever their section.
The tree of errors a user can cause (a bug is never one of these):
BlisError               shown as one line, exit code 2
|-- OptionError         a flag or a configuration value
|-- blis_sim.engine.errors.EngineError
`-- traces.text_file.TraceError
"""

import dataclasses
import importlib
import math
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar


class BlisError(Exception):
    """An error with one line for the user: the given value, the problem, the allowed values."""

    exit_code = 2
    """Exit code of a command that ends with the error."""


class OptionError(BlisError):
    """A flag or a configuration value is out of bounds or unknown."""


class StartError(OptionError):
    """A server does not start with settings that its command line could state. vLLM ends so with exit code 1."""

    exit_code = 1


Options = TypeVar("Options")

_OPTION = "option"
_SECTION = "section"


@dataclass(frozen=True, slots=True)
class Option:
    """Definition of one setting besides its name, type and default."""

    help_text: str | Callable[[], str]
    flags: tuple[str, ...] = ()
    former_flags: tuple[str, ...] = ()
    positional: bool = False
    allowed: tuple[str, ...] | Callable[[], Iterable[str]] = ()
    open_to: Callable[[], Container[str]] | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    infinity: str | None = None
    metavar: str | None = None
    hidden: bool = False
    repeatable: bool = False
    writes: tuple[str, ...] | Mapping[str, str] = ()
    heading: str = ""

    @property
    def help(self) -> str:
        """Return the help text."""
        return self.help_text if isinstance(self.help_text, str) else self.help_text()

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed strings; empty for any string."""
        return self.allowed if isinstance(self.allowed, tuple) else tuple(self.allowed())

    def allows(self, value: object) -> bool:
        """Whether a string is allowed. Raises OptionError for a policy of another package that cannot be loaded."""
        if not self.choices or value in self.choices:
            return True
        return self.open_to is not None and value in self.open_to()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an options class, as the command line and the documentation see it.

    `heading` is the title above it in the help, and `path` the names of the sections that lead to it. Two settings
    are equal wherever they are in their options.
    """

    name: str
    type: Any
    default: Any
    required: bool
    option: Option
    heading: str = ""
    path: tuple[str, ...] = field(default=(), compare=False)

    def of(self, options: Any) -> Any:
        """The value that this setting has in `options`."""
        for name in self.path:
            options = getattr(options, name)
        return getattr(options, self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        """The spellings on the command line, the preferred one first."""
        return self.option.flags or ("--" + self.name.replace("_", "-"),)

    @property
    def former_flags(self) -> tuple[str, ...]:
        """The spellings of earlier versions, which are read and named, but not offered."""
        return self.option.former_flags

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of its flags, the one that turns a switch off included as the last."""
        flags = self.flags
        return (*flags, f"--no-{flags[0].removeprefix('--')}") if self.kind is bool else flags

    @property
    def kind(self) -> Any:
        """The type of its values where it has one, which is without `| None`."""
        if typing.get_origin(self.type) in (types.UnionType, typing.Union):
            (kind,) = (each for each in typing.get_args(self.type) if each is not types.NoneType)
            return kind
        return self.type

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) is tuple

    @property
    def is_repeated(self) -> bool:
        """Whether each value is given separately: as an argument of its own, or with the flag repeated."""
        return self.is_list and (self.option.positional or self.option.repeatable)

    @property
    def label(self) -> str:
        """The name of this setting in errors: the flag, or the bare name of a positional argument."""
        return self.name.upper() if self.option.positional else self.flags[0]


def option(
    default: Any = MISSING,
    help: str | Callable[[], str] = "",  # the word every command-line library uses
    *,
    flags: tuple[str, ...] = (),
    former_flags: tuple[str, ...] = (),
    positional: bool = False,
    choices: Iterable[str] | Callable[[], Iterable[str]] = (),
    open_to: Callable[[], Container[str]] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    infinity: str | None = None,
    metavar: str | None = None,
    hidden: bool = False,
    repeatable: bool = False,
    writes: tuple[str, ...] | Mapping[str, str] = (),
    heading: str = "",
) -> Any:
    """A dataclass field that is also a setting. Without a default the setting is required.

    `at_least` and `at_most` include their limit, `above` does not. `infinity` is the word for a number without limit,
    which is refused where there is no such word. `choices` closes the set of strings, but for
    those in the table that `open_to` returns. A `repeatable` tuple may be given
    in several places, and its items are taken as they are. `writes` are the endings that its value gets in the names of
    the files that are written there, with the kinds of these files where they may replace earlier ones. What follows
    stands below `heading` in the help, up to the next one. `former_flags` are spellings of earlier versions, which are
    read but not shown. `help` and `choices` may be functions, which are called when
    help is printed or a value other than the default is given.
    """
    known = Option(
        help_text=help,
        flags=flags,
        former_flags=former_flags,
        positional=positional,
        allowed=choices if callable(choices) else tuple(choices),
        open_to=open_to,
        at_least=at_least,
        at_most=at_most,
        above=above,
        infinity=infinity,
        metavar=metavar,
        hidden=hidden,
        repeatable=repeatable,
        writes=writes,
        heading=heading,
    )
    return field(default=default, metadata={_OPTION: known})


def section(kind: type) -> Any:
    """A dataclass field that holds a group of settings: an options class of its own, which checks itself."""
    if any(setting.required for setting in options_of(kind)):
        return field(metadata={_SECTION: kind})
    return field(default_factory=kind, metadata={_SECTION: kind})


def names_in(module: str, table: str) -> Callable[[], Collection[str]]:
    """The keys of a table, for `choices`. Its module, and with it all that the table names, is imported when needed."""

    def names() -> Collection[str]:
        found: Collection[str] = getattr(importlib.import_module(module), table)
        return found

    return names


def options_of(options_class: type) -> tuple[Setting, ...]:
    """The settings of an options class in the order of their declaration, those of a section in its place.

    Raises TypeError for a class in which two settings have one name.
    """
    return _settings_of(options_class)


@lru_cache(maxsize=256)
def _settings_of(options_class: type) -> tuple[Setting, ...]:
    settings: list[Setting] = []
    heading = ""
    for setting in _declared(options_class):
        heading = setting.option.heading or heading
        settings.append(setting if setting.heading == heading else replace(setting, heading=heading))
    for name, number in Counter(setting.name for setting in settings).items():
        if number > 1:
            raise TypeError(f"{options_class.__name__} has two settings of one name: {name}")
    return tuple(settings)


def _declared(options_class: type) -> Iterator[Setting]:
    hints = typing.get_type_hints(options_class)
    for each in dataclasses.fields(options_class):
        if _SECTION in each.metadata:
            for setting in options_of(each.metadata[_SECTION]):
                # `replace` would take three times as long, hundreds of times in every command.
                kind, default, is_required = setting.type, setting.default, setting.required
                path = (each.name, *setting.path)
                yield Setting(setting.name, kind, default, is_required, setting.option, setting.heading, path)
        elif _OPTION in each.metadata:
            is_required = each.default is MISSING
            default = None if is_required else each.default
            yield Setting(each.name, hints[each.name], default, is_required, each.metadata[_OPTION])


def sections_of(options_class: type) -> Mapping[str, type]:
    """The name and the class of each section of an options class."""
    return {
        each.name: each.metadata[_SECTION] for each in dataclasses.fields(options_class) if _SECTION in each.metadata
    }


def options_from(options_class: type[Options], /, **values: Any) -> Options:
    """Options with these values by name of the setting, in whatever section it is; the others have their defaults.

    Raises TypeError for an unknown name or a missing required setting, and what the checks of the classes raise.
    """
    own, inside = _by_section(options_class, values)
    made: dict[str, Any] = {
        name: options_from(kind, **inside.get(name, {})) for name, kind in sections_of(options_class).items()
    }
    return options_class(**made, **own)


def with_settings(options: Options, **values: Any) -> Options:
    """The options with other values of some settings, each by its name in whatever section it is."""
    own, inside = _by_section(type(options), values)
    changed = {name: with_settings(getattr(options, name), **each) for name, each in inside.items()}
    return replace(options, **changed, **own)  # type: ignore[type-var]


def _by_section(options_class: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The values of an options class itself, and by name of the section those of its sections."""
    sections = {setting.name: setting.path[0] for setting in options_of(options_class) if setting.path}
    own: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name in sections:
            inside.setdefault(sections[name], {})[name] = value
        else:
            own[name] = value
    return own, inside


def check_options(options: Any) -> None:
    """Raise OptionError for the first value of `options` outside its declared bounds; sections check themselves.

    Meant for `__post_init__`, so that no unchecked instance exists. None means "not given" and always passes, and so
    does the default.
    """
    for setting in options_of(type(options)):
        if setting.path or (value := getattr(options, setting.name)) == setting.default:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None:
                check_value(setting, each)


def check_value(setting: Setting, value: Any) -> None:
    """Raise OptionError for a value of a setting outside its declared bounds."""
    known = setting.option
    if not known.allows(value):
        raise OptionError(f"{setting.label} must be one of {', '.join(filter(None, known.choices))}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        if known.infinity is not None and value > 0:
            return
        raise OptionError(f"{setting.label} must be a finite number, got {value}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if known.above is not None and value <= known.above:
        raise OptionError(f"{setting.label} must be above {known.above:.10g}, got {value}")
    if known.at_least is not None and value < known.at_least:
        raise OptionError(f"{setting.label} must be at least {known.at_least:.10g}, got {value}")
    if known.at_most is not None and value > known.at_most:
        raise OptionError(f"{setting.label} must be at most {known.at_most:.10g}, got {value}")


def ineffective_flags(options: Any, missing: Mapping[str, str]) -> Iterator[str]:
    """Return a note on each setting of `missing` with a value other than its default; values name the needed flag."""
    for setting in options_of(type(options)) if missing else ():
        if setting.name in missing and setting.of(options) != setting.default:
            yield f"{setting.label} has no effect without {missing[setting.name]}"
