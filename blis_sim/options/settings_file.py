"""Settings from a file: the one that `--config` names, else those of the working folder. YAML, JSON or TOML."""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from blis_sim.options.files import read_text
from blis_sim.options.option import OptionError, Placed, Setting, load_json, spellings_of
from blis_sim.options.yaml_text import load_yaml

PYTHON_PROJECT = "pyproject.toml"
"""The file of a Python project, which has settings in its table `tool.blis`."""
_TABLE = ("tool", "blis")

Layer: TypeAlias = dict[str, Placed]
"""Values by spelling of the setting, without leading dashes and with dashes for underscores."""


def layers_of_file(path: str, command: Sequence[str], commands: Collection[tuple[str, ...]]) -> list[Layer]:
    """Return the values of a file for all commands, then those for a command of these words alone, which win over them.

    A mapping below the first words of one of `commands` holds settings of these alone. Raises OptionError.
    """
    parsers: dict[str, Callable[[str], Any]] = {".toml": _load_toml, ".json": load_json}
    parse = parsers.get(Path(path).suffix, load_yaml)
    try:
        found: Any = parse(read_text(path))
    except (OSError, ValueError, RecursionError, OptionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"{path}: cannot be read: {reason}") from error
    content = {} if found is None else _checked(found, path)
    above = _TABLE if path == PYTHON_PROJECT else ()
    for number, key in enumerate(above, start=1):
        content = _checked(content.get(key, {}), f"{path} key {'.'.join(above[:number])}")
    return list(_layers_below(content, path, above, (), command, commands))


def values_of(settings: Sequence[Setting], layers: Sequence[Layer]) -> dict[str, Placed]:
    """Return the values of a file by name of the setting. Raises OptionError for one that is given twice."""
    found: dict[str, Placed] = {}
    for layer in layers:
        for setting in settings:
            spellings = spellings_of(setting)
            given = [value for spelling, value in layer.items() if spelling in spellings]
            if len(given) > 1:
                raise OptionError(f"{given[1].place} is another name of {given[0].place}")
            if given:
                found[setting.name] = given[0]
    return found


def is_about(message: str, spellings: Iterable[str], value: object) -> bool:
    """Whether an error message is about this value of the setting with these flags, as it stands in a file."""
    if isinstance(value, str) and repr(value) in message:
        return True
    words = "|".join(re.escape(each.lstrip("-")) for each in spellings)
    if re.search(rf"(?<![\w-])(--?)?({words})(?![\w-])", message) is None:
        return False
    if isinstance(value, str):
        return value in message
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return any(float(each) == value for each in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)", message))


_LONG_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++\s*+\.\s*+){100}")


def _load_toml(text: str) -> Any:
    """Parse TOML. The parser takes 1.5 GB for a key of 20,000 words."""
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 100 words")
    return tomllib.loads(text)


def _checked(found: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise OptionError(f"{place}: expected names of settings with values, got {type(found).__name__}")
    return found


def _layers_below(
    content: Mapping[str, Any],
    path: str,
    above: tuple[str, ...],
    words: tuple[str, ...],
    command: Sequence[str],
    commands: Collection[tuple[str, ...]],
) -> Iterator[Layer]:
    """Yield the values of the mapping below these keys and words of a command, then those of the command below it."""
    layer: Layer = {}
    own: Iterator[Layer] = iter(())
    for key, value in content.items():
        here = (*words, key)
        if isinstance(value, dict) and any(each[: len(here)] == here for each in commands):
            if here == tuple(command[: len(here)]):
                own = _layers_below(value, path, (*above, key), here, command, commands)
            continue
        spelling = key.removeprefix("--").replace("_", "-")
        found = Placed(value, path, ".".join((*above, key)))
        if spelling in layer:
            raise OptionError(f"{found.place} is another name of {layer[spelling].place}")
        layer[spelling] = found
    yield layer
    yield from own
