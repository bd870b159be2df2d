"""The settings table: a dataclass field made by `option()` is one setting. Values and output paths are checked before a
command begins.
"""

import dataclasses
import importlib
import json
import math
import re
import types
import typing
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from functools import lru_cache
from os import stat
from os.path import basename, dirname, exists, isdir, isfile, islink, realpath
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from blis_sim.options.file_fields import UNBOUNDED, Bounds

# Upper limits that are checked before anything is allocated.
#
# Each is well above any measurement, and below what a machine could hold.

MOST_REQUESTS = 100_000_000
"""Requests of one run. One that is drawn takes 100 bytes from its arrival to its figures, so these would take 10 GB.
One of a trace takes 1 to 2 kB."""

MOST_DRAWN = 1_000_000_000
"""Most numbers of one kind that are drawn, for requests of which few may be kept. The numbers would take 10 to 30
GB."""

MOST_TOKENS = 100_000_000
"""Tokens of one prompt, or output. The longest contexts of models are a tenth of it; as text it is half a gigabyte, and
to simulate it takes minutes."""

LEAST_RATE = 1e-9
"""Requests per second: one in 31 years."""

MOST_RATE = 1e6
"""Requests per second: one a microsecond."""

LATEST_US = 2**53
"""Instants are earlier: 285 years from the start, be it of a run or of 1970, and still exact as a float."""

MOST_PROCESSES = 1024
"""Processes that share one task on one machine; each takes 30 MB and more."""

SLOWEST_GB_PER_S = 1e-6
"""Bandwidth of a network: a kilobyte per second."""

LONGEST_BASE_LATENCY_MS = 1e9
"""Latency of a network: 12 days."""

# The settings table: a dataclass field made by `option()` is one setting, one made by `section()` a group of them.
#
# One row feeds the command-line flag, the YAML key, the documentation and the validation, so none can drift.
# A command's options are a dataclass of sections and settings, whose names are unique whatever their section.
#
# The tree of errors a user can cause (a bug is never one of these):
# BlisError               shown as one line, exit code 2
# |-- OptionError         a flag or a configuration value
# |   `-- ExclusionError  two of them, of which one may be given
# |-- blis_sim.engine.errors.EngineError
# `-- traces.text_file.TraceError


class BlisError(Exception):
    """An error with one line for the user: the given value, the problem, the allowed values."""

    exit_code = 2
    """Exit code of a command that ends with the error."""


class OptionError(BlisError):
    """A flag or a configuration value is out of bounds or unknown."""


class ExclusionError(OptionError):
    """Two settings have values of which only one may be given. `ending` follows the names in the message."""

    def __init__(self, first: str, other: str, ending: str = ", give one of them") -> None:
        super().__init__(f"{first} and {other} exclude each other{ending}")
        self.flags = frozenset(word.strip(",") for word in f"{first} {other}".split() if word.startswith("--"))
        """The flags of the settings."""


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
    positional: bool = False
    allowed: tuple[str, ...] | Callable[[], Iterable[str]] = ()
    open_to: Callable[[], Container[str]] | None = None
    suggested: Callable[[], Iterable[str]] | None = None
    bounds: Bounds = UNBOUNDED
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

    @property
    def names(self) -> tuple[str, ...]:
        """The strings that a shell offers: those that are allowed, or where any is, those that are suggested."""
        return self.choices or (tuple(self.suggested()) if self.suggested is not None else ())

    def allows(self, value: object) -> bool:
        """Whether a string is allowed. Raises OptionError for a policy of another package that cannot be loaded."""
        if self.open_to is not None and value in self.open_to():
            return True
        return not self.choices or value in self.choices


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
    def has_items(self) -> bool:
        """Whether a value has several items; in a text that is no list commas separate them, as the metavar says."""
        return self.is_list or (self.option.metavar or "").endswith(",...")

    @property
    def label(self) -> str:
        """The name of this setting in errors: the flag, or the bare name of a positional argument."""
        return self.name.upper() if self.option.positional else self.flags[0]


def option(
    default: Any = MISSING,
    help: str | Callable[[], str] = "",  # the word every command-line library uses
    *,
    flags: tuple[str, ...] = (),
    positional: bool = False,
    choices: Iterable[str] | Callable[[], Iterable[str]] = (),
    open_to: Callable[[], Container[str]] | None = None,
    suggested: Callable[[], Iterable[str]] | None = None,
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

    `at_least` and `at_most` include their limit, `above` does not. `infinity` is the word for a number without limit;
    without such a word an unlimited number is refused. `choices` closes the set of strings, except for keys of the
    table that `open_to` returns. `suggested` are names that a shell offers where any string is allowed. A `repeatable`
    tuple may be given in several places, and its items are taken as they are. `writes` are the endings of the files
    that are written at the value, with the kinds of files that may replace earlier ones. Settings stand below `heading`
    in the help, up to the next heading.
    `help` and `choices` may be functions, called when help is printed or a value other than the default is given.
    """
    known = Option(
        help_text=help,
        flags=flags,
        positional=positional,
        allowed=choices if callable(choices) else tuple(choices),
        open_to=open_to,
        suggested=suggested,
        bounds=Bounds(at_least, at_most, above),
        infinity=infinity,
        metavar=metavar,
        hidden=hidden,
        repeatable=repeatable,
        writes=writes,
        heading=heading,
    )
    return field(default=default, metadata={_OPTION: known})


def written_file(kind: str, help: str, default: str | None = None, **more: Any) -> Any:
    """A setting that names a file which the command writes; `kind` is that of earlier files that it may replace."""
    return option(default, help, metavar="FILE", writes={"": kind}, **more)


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


def names_from(module: str, function: str) -> Callable[[], Iterable[str]]:
    """The names that a function returns, for `suggested`. Its module is imported when they are needed."""

    def names() -> Iterable[str]:
        found: Iterable[str] = getattr(importlib.import_module(module), function)()
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
    if broken := known.bounds.broken_by(value):
        raise OptionError(f"{setting.label} must be {broken}, got {value}")


def ineffective_flags(options: Any, missing: Mapping[str, str]) -> Iterator[str]:
    """Return a note on each setting of `missing` with a value other than its default; values name the needed flag."""
    for setting in options_of(type(options)) if missing else ():
        if setting.name in missing and setting.of(options) != setting.default:
            yield f"{setting.label} has no effect without {missing[setting.name]}"


# Values of settings from the text of users: a word of a command line, a YAML file, or JSON.


def load_json(text: str) -> Any:
    """The value of a JSON text of a user. Raises OptionError for a key that stands twice, and ValueError otherwise,
    also where values nest deeper than the parser follows.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise OptionError(f"the key {key!r} stands twice in {text!r:.200}")
        return found

    return _load_json(text, mapping)


def load_model_json(text: str) -> Any:
    """The value of a file of a model, in which the last of equal keys counts, as for vLLM. Raises ValueError."""
    return _load_json(text, None)


def _load_json(text: str, mapping: Callable[[list[tuple[str, Any]]], Any] | None) -> Any:
    try:
        return json.loads(text, object_pairs_hook=mapping)
    except RecursionError:
        raise ValueError("values nest too deep") from None


def json_object(flag: str, text: str | None) -> dict[str, Any]:
    """The JSON object that is the value of a flag, empty for None. Raises OptionError for any other text."""
    if text is None:
        return {}
    try:
        found = load_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{flag} must be a JSON object, got {text!r}")
    return found


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
    return parse_flag_value(setting, text)


def parse_yaml_value(setting: Setting, value: Any) -> Any:
    """Return the value of a YAML value for a setting. Raises OptionError."""
    if value is None and setting.kind is setting.type:
        raise OptionError(f"{setting.label} must be given a value")
    if isinstance(value, bool | list | Mapping):
        return parse_value(setting, json.dumps(value, default=str))
    return parse_value(setting, _NONE if value is None else str(value))


class Placed(NamedTuple):
    """A value that no flag gave, as text or as a file has it: the variable that has it, or the file and the key."""

    value: Any
    source: str
    key: str = ""

    @property
    def place(self) -> str:
        """The source as an error names it."""
        return f"{self.source} key {self.key}" if self.key else self.source


def find_setting(options_class: type, name: str) -> Setting:
    """The setting of this name, or with this flag, dashes or underscores alike. Raises OptionError."""
    spelling = name.replace("_", "-").removeprefix("--")
    for setting in options_of(options_class):
        if spelling in spellings_of(setting):
            return setting
    raise OptionError(f"no setting is called {name!r}")


def spellings_of(setting: Setting) -> set[str]:
    """The names of a setting in a file: its own and those of its flags, with dashes."""
    return {setting.name.replace("_", "-"), *(flag.removeprefix("--") for flag in setting.flags)}


# Checks of output paths before a command begins: no overwriting of inputs or other outputs, no missing folder.

_LOOK_BYTES = 1 << 16
_STREAMS = ("/dev/", "/proc/")
"""Folders with names of open files and devices, such as /dev/stdout."""
_GZIP = 31
"""The window bits that make zlib read gzip."""


class FileKind(NamedTuple):
    """Description of a kind of file for error messages, and a pattern that the beginning of each such file has."""

    words: str
    pattern: str


KINDS: Mapping[str, FileKind] = {
    "header": FileKind("the header of a trace", r"^(trace_version|time_unit|workload_seed) *:"),
    "rows": FileKind("rows of a trace", r"\A\s*(?=.*\brequest_id\b)(?=.*\b(input|output)_tokens\b)"),
    "requests": FileKind(
        "requests of a trace in another format",
        r'\A\s*(\{"timestamp"[^{}]*"input_length"|timestamp,contexttokens|arrived_at,num_prefill_tokens)',
    ),
    "token times": FileKind("token times of a trace", r"\A\s*request_id,chunk_index,timestamp_us\b"),
    "server metrics": FileKind("readings of a server's metrics", r'\A\s*\{"(server|at_us)"'),
    "content": FileKind("contents of recorded requests", r'\A\s*\{"blis_content"'),
    "server settings": FileKind("settings of a recorded server", r"^server_settings *:"),
    "spec": FileKind("a workload spec", r"^(clients|cohorts|inference_perf|vidur|scenario|aggregate_rate) *:"),
    "latencies": FileKind("latencies per request", r'\A\s*\[\s*(\]|\{[^{}]*"(ttft_us|e2e_us)")'),
    "run metrics": FileKind("metrics of a run", r'\A\s*\{.*"completed_requests"'),
    "request graphs": FileKind("graphs of requests", r'\A\s*\[\s*(\]|\{"directed")'),
    "decisions": FileKind("decisions of a cluster", r'\A\s*\[\s*(\]|\{[^{}]*"(at_us|regret)")'),
    "saturation": FileKind("a report of saturation detectors", r'\A\s*\{\s*"(final|trace|labels)"'),
    "calibration": FileKind(
        "a report of a calibration", r'\A\s*\{.*"(trace_info|all_within_threshold|mape_threshold)"'
    ),
    "page": FileKind("a page of a calibration", r"\A\s*<!doctype html>.{0,400}<title>Calibration"),
    "coefficients": FileKind("coefficients of blis fit", r"^latency_model *:"),
    "layer table": FileKind("a table of AICB", r"\Alayer_id\tlayer_name\t"),
    "drift metrics": FileKind("metrics of a watched server", r"\A# HELP blis_watch_"),
    "comparison page": FileKind("a page of a comparison", r"\A\s*<!doctype html>.{0,400}<title>Comparison"),
    "run page": FileKind("a page of a run", r"\A\s*<!doctype html>.{0,400}<title>Run of"),
    "sweep page": FileKind("a page of a sweep", r"\A\s*<!doctype html>.{0,400}<title>Sweep of"),
    "plan page": FileKind("a page of a plan", r"\A\s*<!doctype html>.{0,400}<title>Plan for"),
    "tune page": FileKind("a page of a search", r"\A\s*<!doctype html>.{0,400}<title>Engine settings for"),
    "load page": FileKind("a page of a load", r"\A\s*<!doctype html>.{0,400}<title>Load on"),
    "points": FileKind("points of a sweep", r"\A\s*(?=.*\bcompleted_requests\b)(?=.*\btotal_output_tokens\b)"),
    "simulations": FileKind("simulations of a plan", r'\A\{"file": "simulations of blis plan"\}'),
    "offline results": FileKind("results of an offline benchmark", r'\A\s*\{\s*"(model_id|avg_latency|elapsed_time)"'),
    "benchmark results": FileKind("results of a benchmark", r'\A\s*\{.*"(request_throughput|endpoint_type|backend)"'),
    "picture": FileKind("a picture", r"\A(\x89PNG|%PDF|\s*<\?xml|\s*<svg)"),
    "provenance": FileKind("the origin of a result", r'\A\s*\{\s*"blis_version"'),
    "parquet": FileKind("Parquet", r"\APAR1"),
}
"""Patterns see the first 64 KiB as Latin-1 text; `.` matches line ends only where the kind is JSON or HTML."""

_PAGES = ("page", "comparison page", "run page", "sweep page", "plan page", "tune page", "load page")
_ACROSS_LINES = ("run metrics", "calibration", "benchmark results", *_PAGES)


def reason_not_writable(path: str, kind: str) -> str | None:
    """Return the reason why a file of this kind cannot be written to `path`; None where it can.

    An earlier file of the same kind and an empty one may be replaced, and so may devices and pipes be written.
    """
    is_link = islink(path) and not path.startswith(_STREAMS)
    where = f"{realpath(path)}, where the link {path} leads to" if is_link else path
    if is_link and not exists(path):
        return f"{where}, which does not exist"
    start = _beginning(path) if isfile(path) else b""
    return None if not start or is_of_kind(start, kind) else f"{where}, which does not hold {KINDS[kind].words}"


def is_of_kind(start: bytes, kind: str) -> bool:
    """Whether a file that begins in this way is of this kind."""
    flags = re.MULTILINE | (re.DOTALL if kind in _ACROSS_LINES else 0)
    text = start.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    return re.search(KINDS[kind].pattern, text, flags | re.IGNORECASE) is not None


def _beginning(path: str) -> bytes:
    """The first bytes of a file, unzipped; none of one that cannot be read, which its writer will report."""
    try:
        with open(path, "rb") as file:
            start = file.read(_LOOK_BYTES)
    except OSError:
        return b""
    if not path.endswith(".gz"):
        return start
    try:
        return zlib.decompressobj(_GZIP).decompress(start, _LOOK_BYTES) or start
    except zlib.error:
        return start


_NAMELESS = (".yaml", ".csv", ".itl.csv")
"""Files of a prefix that is empty behind its folder: hidden files, of which none is found beside another."""


Output: TypeAlias = tuple[str, str] | tuple[str, str, str]
"""A file that is written, the flag to name, and the kind of the file where an earlier one of that kind may be there."""


def check_outputs(options: Any, *also_read: Path, also_written: Iterable[Output] = ()) -> None:
    """Raise OptionError for a file that is to be written although another setting names it too, or has no folder,
    or is one.

    Every value of another setting that names a file counts as read. `also_read` are files that no value names, and
    `also_written` those, each with the flag to name. Devices and pipes may be written by several.
    """
    written = [*_written(options), *also_written]
    flags = {f"{label} reads" for _, label, *_ in written}
    check_written(written, [(path, reason) for path, reason in _read(options, also_read) if reason not in flags])


def check_written(written: Iterable[Output], read: Iterable[tuple[str, str]]) -> None:
    """Raise OptionError for output files that cannot be written; each file of `read` has a reason such as
    `--trace reads`.

    A file of another kind than the one to be written is never replaced, nor is what a link leads to.
    """
    outputs = list(written)
    if not outputs:
        return
    reasons = {_identity(path): reason for path, reason in read if isfile(path)}
    labels: dict[Hashable, str] = {}
    for path, label, *kind in outputs:
        if isdir(path):
            raise OptionError(f"{label} must be a file, got the folder {path}")
        if basename(path) in _NAMELESS:
            raise OptionError(f"{label} must name files, got only the folder {dirname(path)}/")
        if exists(path) and not isfile(path):
            continue
        if not isdir(dirname(path) or "."):
            raise OptionError(f"{label} must be in a folder that exists, got {path}")
        file = _identity(path)
        if file in reasons:
            raise OptionError(f"{label} would write over {path}, which {reasons[file]}")
        if file in labels:
            raise OptionError(f"{labels[file]} and {label} would both write {path}")
        labels[file] = label
        problem = reason_not_writable(path, kind[0]) if kind else None
        if problem is not None:
            raise OptionError(f"{label} would write over {problem}")


def _identity(path: str) -> Hashable:
    """Return an identity that all names of a file share, links of both kinds among them."""
    if not exists(path):
        return realpath(path)
    found = stat(path)
    return found.st_dev, found.st_ino


def _written(options: Any) -> Iterator[Output]:
    for setting in options_of(type(options)):
        value, writes = setting.of(options), setting.option.writes
        for suffix in writes if value else ():
            path = f"{value}{suffix}"
            yield (path, setting.label, writes[suffix]) if isinstance(writes, Mapping) else (path, setting.label)


def _read(options: Any, also_read: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for path in also_read:
        yield str(path), "belongs to what is read"
    for setting in options_of(type(options)):
        value = setting.of(options)
        if setting.option.writes or not value:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str):
                yield each, f"{setting.label} reads"
