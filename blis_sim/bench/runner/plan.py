"""The plan of a sweep: a command with its settings, and the values of settings that vary, alone or together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from math import comb, prod
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from blis_sim.bench import BenchError
from blis_sim.bench.runner.commands import RECORDINGS, SIMULATIONS, Simulation, simulation
from blis_sim.engine.deployment import resolve
from blis_sim.options import BlisError, OptionError, options_of
from blis_sim.options.option import Setting, check_value
from blis_sim.options.text import find_setting, flags_of, load_json, parse_command_line, parse_value, parse_yaml_value
from traces import beside
from traces.text_file import read_yaml

Rows: TypeAlias = list[tuple[Any, ...]]
"""The values of some settings, together."""

MOST_ROWS = 100_000


def is_coupled(name: str) -> bool:
    """Return whether a name is that of several settings: `a+b` for counts with a sum, `a,b` for lists side by side."""
    return "+" in name or "," in name


def names_of(name: str) -> list[str]:
    """Return the names of the single settings. Raises OptionError for an empty one, or one that is there twice."""
    names = [each.strip() for each in name.split("+" if "+" in name else ",")]
    if "" in names or len(set(names)) < len(names):
        raise OptionError(f"--vary must name settings as a+b=SUM or a,b=1:2,3:4, each once, got {name!r}")
    return names


def rows_of(name: str, values: Any, read: Callable[[int, Any], Any]) -> Rows:
    """Return the values of coupled settings; `values` is text after the equals sign, or a list of a file.

    `read` returns the value of the setting at a place. Raises OptionError.
    """
    names = names_of(name)
    if "+" in name:
        found = [row for total in _totals(name, values) for row in _splits(name, total, len(names))]
    else:
        found = [tuple(row) for row in _lists(name, values, len(names))]
    rows = [tuple(read(place, value) for place, value in enumerate(row)) for row in found]
    if len(set(rows)) < len(rows):
        raise OptionError(f"--vary {name} names values twice")
    return rows


def _totals(name: str, values: Any) -> Iterator[int]:
    for each in values.split(",") if isinstance(values, str) else values:
        text = str(each).strip()
        if not text.isascii() or not text.isdigit():
            raise OptionError(f"--vary {name} must be the sum of counts from 1 on, such as {name}=8, got {each!r}")
        yield int(text)


def _splits(name: str, total: int, num_parts: int) -> Rows:
    """Return all ways in which a total is the sum of so many counts from 1 on, the first part ascending."""
    if total < num_parts:
        raise OptionError(f"--vary {name} must be at least {num_parts}, one of each, got {total}")
    if comb(total - 1, num_parts - 1) > MOST_ROWS:
        raise OptionError(f"--vary {name} must give at most {MOST_ROWS} points, {total} gives more")
    cuts = combinations(range(1, total), num_parts - 1)
    return [tuple(after - before for before, after in pairwise((0, *each, total))) for each in cuts]


def _lists(name: str, values: Any, num_names: int) -> Iterator[Sequence[Any]]:
    """Yield the values side by side, of text such as `64:2048,128:8192` or of a list of lists."""
    given = values
    if isinstance(values, str):
        try:
            given = load_json(values) if values.startswith("[") else [each.split(":") for each in values.split(",")]
        except ValueError as error:
            raise OptionError(f"--vary {name} must have values such as 1:2,3:4, or JSON, got {values!r}") from error
    for row in given:
        if not isinstance(row, list) or len(row) != num_names:
            raise OptionError(f"--vary {name} must have {num_names} values side by side, such as 1:2, got {row!r}")
        yield [each.strip() if isinstance(each, str) else each for each in row]


_DEFAULT_COMMAND = "run"
_KEYS = ("command", "settings", "vary")
_MOST_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation: what varies, by name of the setting, and all settings that are given."""

    number: int
    varied: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The varied settings as text."""
        return " ".join(f"{name}={value}" for name, value in self.varied.items()) or "these settings"


@dataclass(frozen=True, slots=True)
class Plan:
    """A command, the settings that all its points share, and the values of the others."""

    simulation: Simulation
    settings: Mapping[str, Any]
    vary: Mapping[str, Sequence[Any]]
    notes: tuple[str, ...] = ()
    """Notes about the names of settings, a line each."""
    coupled: Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]] = field(default_factory=dict)
    """The values that settings have together, by their names."""

    @property
    def varied(self) -> list[str]:
        """The names of all settings that vary, in order."""
        return [*self.vary, *(name for names in self.coupled for name in names)]

    def points(self, sample: int | None = None, seed: int = 0) -> list[Point]:
        """Every combination, the last setting varying fastest; with `sample`, so many of them by chance, in order."""
        axes: list[list[dict[str, Any]]] = [[{name: value} for value in values] for name, values in self.vary.items()]
        axes += [[dict(zip(names, row, strict=True)) for row in rows] for names, rows in self.coupled.items()]
        num_points = prod(map(len, axes))
        if num_points > _MOST_POINTS:
            raise OptionError(f"--vary must give at most {_MOST_POINTS} points, got {num_points}")
        chosen = range(num_points)
        if sample is not None and sample < num_points:
            chosen = sorted(Random(f"{seed}/points").sample(chosen, sample))  # type: ignore[assignment]
        numbers = set(chosen)
        combinations = ({name: each[name] for each in parts for name in each} for parts in product(*axes))
        return [
            Point(number, varied, {**self.settings, **varied})
            for number, varied in enumerate(combinations)
            if number in numbers
        ]

    def paths_read(self) -> list[Path]:
        """Files that points may read: files that settings name, and further files of recordings."""
        values: dict[str, Sequence[Any]] = {name: (value,) for name, value in self.settings.items()}
        values |= self.vary
        for coupled, rows in self.coupled.items():
            values |= dict(zip(coupled, zip(*rows, strict=True), strict=True))
        names = [name for each in values.values() for name in _texts(each)]
        recordings = [name for setting in RECORDINGS for name in _texts(values.get(setting, ()))]
        return [*map(Path, names), *beside(*recordings)]

    def check_some_fit(self, points: Sequence[Point]) -> None:
        """Raise the BlisError of the first point if no point has valid settings."""
        first: BlisError | None = None
        for point in points:
            try:
                resolve(self.simulation.options_with(point.settings).cluster.deployment)
            except BlisError as error:
                first = first or error
            except Exception:  # noqa: BLE001  (the point reports it)
                return
            else:
                return
        if first is not None:
            raise first


def _texts(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, str))


def plan_of(words: Sequence[str], vary: Sequence[str], config: str | None, beside: type | None = None) -> Plan:
    """Return the plan that a command line and a YAML file describe; the command line wins where both have a setting.

    `words` are the command, if it is not `run`, and its flags; `vary` holds `NAME=VALUE,...`. `beside` has the
    settings that were read before. Raises BlisError.
    """
    given = _read(config) if config is not None else {}
    has_command = bool(words) and words[0] in SIMULATIONS
    command = words[0] if has_command else given.get("command", _DEFAULT_COMMAND)
    found = simulation(command)
    settings = dict(_settings_of_file(found, config, given.get("settings", {})))
    known = () if beside is None else flags_of(beside)
    flags = parse_command_line(found.options, words[1:] if has_command else words, parse_value, known)
    by_flags, notes = flags.values, flags.notes
    single, coupled = _by_kind(vary)
    vary_by_flags = _vary_of_flags(found, single)
    coupled_by_flags = dict(_coupled_of_flags(found, coupled))
    together = {name for names in coupled_by_flags for name in names}
    _check_varied_once([*vary_by_flags, *(name for names in coupled_by_flags for name in names)])
    for name in by_flags.keys() & {*vary_by_flags, *together}:
        raise OptionError(f"--vary {name} and one value for it exclude each other, got {by_flags[name]!r}")
    settings |= by_flags
    _check_numbers(found, settings)
    in_file = dict(_vary_of_file(found, config, given.get("vary", {})))
    varied = {name: values for name, values in (in_file | vary_by_flags).items() if name not in together}
    for name in {*varied, *together}:
        settings.pop(name, None)
    notes += _notes_on_names([*(each.partition("=")[0] for each in single), *_names_in_file(given)], found)
    return Plan(found, settings, varied, tuple(notes), coupled_by_flags)


def _check_numbers(found: Simulation, settings: Mapping[str, Any]) -> None:
    """Raise OptionError for a number out of bounds, before any arithmetic with it."""
    for setting in options_of(found.options):
        value = settings.get(setting.name)
        if isinstance(value, float) and value != setting.default:
            check_value(setting, value)


def _by_kind(vary: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split texts into those that vary one setting each and those that vary several together."""
    coupled = [each for each in vary if is_coupled(each.partition("=")[0])]
    return [each for each in vary if each not in coupled], coupled


def _coupled_of_flags(found: Simulation, vary: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Rows]]:
    for each in vary:
        name, _, values = each.partition("=")
        if not values:
            raise OptionError(f"--vary must be NAME=VALUE,..., got {each!r}")
        settings = [_setting(found, part, "--vary:") for part in names_of(name)]
        rows = rows_of(name, values, lambda place, value, known=settings: parse_yaml_value(known[place], value))  # type: ignore[misc]
        yield tuple(setting.name for setting in settings), rows


def _check_varied_once(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"--vary names {name} twice: give all of its values at once")


def _names_in_file(given: Mapping[str, Any]) -> list[str]:
    return [name for key in ("settings", "vary") for name in given.get(key, ())]


def _notes_on_names(names: Sequence[str], found: Simulation) -> Iterator[str]:
    """A note on each name of a setting that is a former flag."""
    present = {former: each.flags[0] for each in options_of(found.options) for former in each.former_flags}
    for name in dict.fromkeys(names):
        former = f"--{name.strip().removeprefix('--').replace('_', '-')}"
        if former in present:
            yield f"{name} is the former name of {present[former]}"


def _vary_of_flags(found: Simulation, vary: Sequence[str]) -> dict[str, Sequence[Any]]:
    varied: dict[str, Sequence[Any]] = {}
    for each in vary:
        name, values = _vary_of_flag(found, each)
        if name in varied:
            raise OptionError(f"--vary names {name} twice: give all of its values at once")
        varied[name] = values
    return varied


def _vary_of_flag(found: Simulation, text: str) -> tuple[str, Sequence[Any]]:
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise OptionError(f"--vary must be NAME=VALUE,..., got {text!r}")
    setting = _setting(found, name, "--vary:")
    try:
        parts = load_json(values) if values.startswith("[") else [part.strip() for part in values.split(",")]
    except ValueError as error:
        raise OptionError(f"--vary {name} must have values with commas, or a JSON list, got {values!r}") from error
    return setting.name, _distinct(setting, [parse_yaml_value(setting, part) for part in parts])


def _vary_of_file(found: Simulation, path: str | None, vary: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    for name, values in _mapping(path, "vary", vary).items():
        if not isinstance(values, list) or not values:
            raise BenchError(f"{path} key vary.{name}: expected a list of values, got {values!r}")
        setting = _setting(found, name, f"{path} key vary:")
        yield setting.name, _distinct(setting, [_value(setting, value, f"{path} key vary.{name}") for value in values])


def _settings_of_file(found: Simulation, path: str | None, settings: Any) -> Iterator[tuple[str, Any]]:
    for name, value in _mapping(path, "settings", settings).items():
        setting = _setting(found, name, f"{path} key settings:")
        yield setting.name, _value(setting, value, f"{path} key settings.{name}")


def _value(setting: Setting, value: Any, place: str) -> Any:
    try:
        return parse_yaml_value(setting, value)
    except OptionError as error:
        raise BenchError(f"{place}: {error}") from error


def _setting(found: Simulation, name: str, place: str) -> Setting:
    try:
        return find_setting(found.options, name.strip())
    except OptionError as error:
        raise OptionError(f"{place} {error} of blis {found.name}") from error


def _distinct(setting: Setting, values: Sequence[Any]) -> Sequence[Any]:
    if len(set(values)) < len(values):
        raise OptionError(f"--vary {setting.name} names a value twice")
    return values


def _mapping(path: str | None, key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise BenchError(f"{path} key {key}: expected names with values, got {value!r}")
    return value


def _read(path: str) -> Mapping[str, Any]:
    found = _mapping(path, "(top)", read_yaml(Path(path)))
    unknown = [key for key in found if key not in _KEYS]
    if unknown:
        raise BenchError(f"{path} key {unknown[0]}: unknown, known are {', '.join(_KEYS)}")
    return found
