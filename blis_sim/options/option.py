"""One row of a settings table: a dataclass field that knows its help text and its bounds.

The same row feeds the command-line flag, the YAML key, the documentation and the validation, so none can drift.
"""

import dataclasses
import importlib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from blis_sim.options.errors import OptionError

_METADATA_KEY = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one setting besides its name, type and default."""

    help_text: str | Callable[[], str]
    flags: tuple[str, ...] = ()
    former_flags: tuple[str, ...] = ()
    positional: bool = False
    allowed: tuple[str, ...] | Callable[[], Iterable[str]] = ()
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
        """What it is for."""
        return self.help_text if isinstance(self.help_text, str) else self.help_text()

    @property
    def choices(self) -> tuple[str, ...]:
        """The strings that it may be; empty for any."""
        return self.allowed if isinstance(self.allowed, tuple) else tuple(self.allowed())


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of an options class, as the command line and the documentation see it, and what it stands under."""

    name: str
    type: Any
    default: Any
    required: bool
    option: Option
    heading: str = ""

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
        """Whether each of its values is given by itself: as an argument of its own, or with the flag again."""
        return self.is_list and (self.option.positional or self.option.repeatable)

    @property
    def label(self) -> str:
        """How an error names this setting: the flag, or the bare name of a positional argument."""
        return self.name.upper() if self.option.positional else self.flags[0]


def option(
    default: Any = MISSING,
    help: str | Callable[[], str] = "",  # the word every command-line library uses
    *,
    flags: tuple[str, ...] = (),
    former_flags: tuple[str, ...] = (),
    positional: bool = False,
    choices: Iterable[str] | Callable[[], Iterable[str]] = (),
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
    which is refused where there is no such word. `choices` closes the set of strings. A `repeatable` tuple may be given
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
    return dataclasses.field(default=default, metadata={_METADATA_KEY: known})


def names_in(module: str, table: str) -> Callable[[], Iterable[str]]:
    """The keys of a table, for `choices`. Its module, and with it all that the table names, is imported when needed."""

    def names() -> Iterable[str]:
        found: Iterable[str] = getattr(importlib.import_module(module), table)
        return found

    return names


def options_of(options_class: type) -> list[Setting]:
    """The settings of an options class, in declaration order, parents first."""
    hints = typing.get_type_hints(options_class)
    settings = []
    heading = ""
    for field in dataclasses.fields(options_class):
        known = field.metadata.get(_METADATA_KEY)
        if known is None:
            continue
        heading = known.heading or heading
        is_required = field.default is MISSING
        default = None if is_required else field.default
        settings.append(Setting(field.name, hints[field.name], default, is_required, known, heading))
    return settings


def check_options(options: Any) -> None:
    """Raise OptionError for the first value of `options` outside its declared bounds.

    Meant for `__post_init__`, so that no unchecked instance exists. None means "not given" and always passes, and so
    does the default.
    """
    for setting in options_of(type(options)):
        value = getattr(options, setting.name)
        if value == setting.default:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None:
                _check_value(setting, each)


def _check_value(setting: Setting, value: Any) -> None:
    known = setting.option
    if known.choices and value not in known.choices:
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
