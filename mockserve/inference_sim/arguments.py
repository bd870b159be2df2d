"""The command line of `llm-d-inference-sim`: flags, `SIM_` variables and a `--config` file, in our syntax."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, options_of
from blis_sim.options.text import load_json
from mockserve.options.serve import ServeOptions
from mockserve.vllm_arguments.rewrite import FLAG as CONFIG_FLAG
from mockserve.vllm_arguments.rewrite import NO_EFFECT_FLAG, is_flag, read_settings
from mockserve.vllm_arguments.rewrite import rewritten as in_our_syntax
from mockserve.vllm_arguments.table import ACTS, VllmFlag, read_table

TABLE = Path(__file__).parent / "flags.csv"
SWITCH_VALUES = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
VARIABLE_PREFIX = "SIM_"

SERVE_ARGUMENTS_FLAG = "--serve-arguments"
"""Our flag for the part of the command line that `blis serve` reads."""

_SERVICE_ADDRESS = "tcp://"
"""Beginning of the value that Kubernetes gives SIM_PORT where a service is called sim."""
_DEPLOYMENT = ("cluster", "deployment")
_ALSO_WITH_SET_TIMES = "scheduling_policy"
"""The one setting of the simulated deployment that acts where times are set."""
_ONE_PROCESS_ONLY = "api_server_count"
"""Adapters that are loaded at run time need a server of one process."""


def rewritten(arguments: Sequence[str], own_flags: set[str], variables: Mapping[str, str]) -> list[str]:
    """Convert llm-d-inference-sim's command line, also with vLLM's flags, to ours. Raises BlisError for bad values.

    `own_flags` are the flags of the program here. Flags of vLLM that act in `blis serve` alone become one
    `--serve-arguments`.
    """
    own_table, vllm_table = read_table(TABLE), read_table()
    table = {**vllm_table, **own_table}
    passed_flags = _passed_flags(vllm_table) - own_table.keys() - own_flags
    path, given = _without_config(arguments)
    path = path or variables.get(f"{VARIABLE_PREFIX}CONFIG", "")
    unknown: list[str] = []
    settings = [
        *(_from_file(path, table, own_flags, unknown) if path else ()),
        *_from_variables(variables, table, own_flags),
    ]
    plain, words = _without_words([*settings, *_with_plain_switches(given, table)], table)
    found = in_our_syntax(plain, own_flags | passed_flags, table)
    own, passed = _split(found, table, passed_flags)
    return [*_naming([*unknown, *words], own), *([SERVE_ARGUMENTS_FLAG, json.dumps(passed)] if passed else ())]


def _passed_flags(vllm_table: Mapping[str, VllmFlag]) -> set[str]:
    """Return the flags of vLLM that `blis serve` acts on where times are set."""
    return {
        flag
        for setting in options_of(ServeOptions)
        if setting.path[:2] != _DEPLOYMENT or setting.name == _ALSO_WITH_SET_TIMES
        if setting.name != _ONE_PROCESS_ONLY
        for flag in setting.flags
        if flag in vllm_table and vllm_table[flag].here == ACTS
    }


def _without_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the path behind the last `--config`, and the other arguments."""
    path = ""
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name != CONFIG_FLAG:
            rest.append(argument)
            continue
        path = value if equals else next(left, "")
        if not path:
            raise OptionError(f"{CONFIG_FLAG} must name a YAML file, got nothing")
    return path, rest


def _from_file(path: str, table: Mapping[str, VllmFlag], own_flags: set[str], unknown: list[str]) -> Iterator[str]:
    """Yield the arguments that a YAML file stands for; keys that are no flags go to `unknown`."""
    for key, value in read_settings(path).items():
        flag = f"--{key.replace('_', '-')}"
        if flag not in table and flag not in own_flags:
            unknown.append(flag)
        elif isinstance(value, bool):
            yield from _with_plain_switches([f"{flag}={str(value).lower()}"], table)
        elif isinstance(value, str) and flag in table and table[flag].is_switch:
            yield from _with_plain_switches([f"{flag}={value}"], table)
        elif isinstance(value, list):
            yield from [flag, *map(_text, value)] if value else ()
        elif value is not None:
            yield from (flag, _text(value))


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _from_variables(variables: Mapping[str, str], table: Mapping[str, VllmFlag], own_flags: set[str]) -> Iterator[str]:
    """Yield the arguments that variables such as SIM_MAX_NUM_SEQS stand for; those that name no flag are not ours."""
    for name in sorted(variables):
        flag = f"--{name.removeprefix(VARIABLE_PREFIX).lower().replace('_', '-')}"
        if not name.startswith(VARIABLE_PREFIX) or not (flag in own_flags or flag in table) or flag == CONFIG_FLAG:
            continue
        value = variables[name]
        if flag == "--port" and value.startswith(_SERVICE_ADDRESS):
            continue
        if flag in table and table[flag].is_switch:
            yield from _with_plain_switches([f"{flag}={value}"], table)
        elif flag in table and table[flag].number == "+":
            yield from (flag, *_items(name, value))
        else:
            yield from (flag, value)


def _items(name: str, value: str) -> list[str]:
    """Return the items of a list in a variable: a JSON list, one JSON object, or texts with commas between them."""
    if not value.startswith("["):
        return [value] if value.startswith("{") else value.split(",")
    try:
        items = load_json(value)
    except ValueError as error:
        raise OptionError(f"{name} must be a list, comma-separated or in JSON, got {value!r}") from error
    return [_text(each) for each in items]


def _with_plain_switches(arguments: Iterable[str], table: Mapping[str, VllmFlag]) -> Iterator[str]:
    """Yield the arguments, each switch with a value as the switch or its opposite: vLLM's switches have no values."""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        flag = table.get(name.replace("_", "-"))
        if not equals or flag is None or not flag.is_switch:
            yield argument
        elif value.lower() not in SWITCH_VALUES:
            raise OptionError(f"{name} must be true or false, got {value!r}")
        elif SWITCH_VALUES[value.lower()]:
            yield name
        elif flag.opposites:
            yield f"--no-{name.removeprefix('--')}"


def _without_words(arguments: Sequence[str], table: Mapping[str, VllmFlag]) -> tuple[list[str], list[str]]:
    """Return the arguments up to `--` without the words that are no flag's value, and these words.

    As in the original, a switch takes no value from the next word, and such words have no meaning.
    """
    kept: list[str] = []
    words: list[str] = []
    room: float = 0
    for number, argument in enumerate(arguments):
        if argument == "--":
            return kept, words + list(arguments[number + 1 :])
        if is_flag(argument):
            room = _most_values(argument, table)
        elif room:
            room -= 1
        else:
            words.append(argument)
            continue
        kept.append(argument)
    return kept, words


def _most_values(argument: str, table: Mapping[str, VllmFlag]) -> float:
    """Return how many of the words behind a flag are its values."""
    name, equals, _ = argument.partition("=")
    flag = table.get(name.replace("_", "-"))
    if equals or (flag is not None and flag.is_switch):
        return 0
    return math.inf if flag is not None and flag.number == "+" else 1


def _split(
    arguments: Sequence[str], table: Mapping[str, VllmFlag], passed_flags: set[str]
) -> tuple[list[str], list[str]]:
    """Return the arguments of the program's own flags, and those of the flags that are passed on."""
    own: list[str] = []
    passed: list[str] = []
    left = iter(arguments)
    for argument in left:
        flag = table.get(argument)
        to = passed if flag is not None and any(spelling in passed_flags for spelling in flag.spellings) else own
        to.append(argument)
        has_value = argument == NO_EFFECT_FLAG or (flag is not None and not flag.is_switch)
        to += itertools.islice(left, has_value)
    return own, passed


def _naming(more: Sequence[str], arguments: list[str]) -> list[str]:
    """Return the arguments with `more` among those that are named as without effect."""
    if not more:
        return arguments
    if NO_EFFECT_FLAG not in arguments:
        return [*arguments, NO_EFFECT_FLAG, json.dumps(list(more))]
    place = arguments.index(NO_EFFECT_FLAG) + 1
    named = [*arguments[place].split(","), *more]
    return [*arguments[:place], json.dumps(named), *arguments[place + 1 :]]
