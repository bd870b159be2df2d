"""vLLM's command line and `--config` file in our syntax, and its exit codes for errors."""

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from blis_sim.engine.errors import EngineError
from blis_sim.options import BlisError, OptionError, StartError
from blis_sim.options.command_line import CONFIG_FLAG, split_config
from blis_sim.options.files import read_text
from blis_sim.options.option import load_json, options_of
from blis_sim.options.settings_file import is_about
from blis_sim.options.yaml_text import load_yaml
from mockserve.options.serve import ServeOptions
from mockserve.options.vllm_flags import FITTED, VllmFlag, checked, members_of, read_size, read_table

# Rewrites vLLM's command line and `--config` file to our syntax; dotted flags become JSON.


def without_config_file(
    arguments: list[str], opposites: Mapping[str, str], said_elsewhere: Collection[str]
) -> list[str]:
    """Return `arguments` after the flags of the `--config` file. The file's model is used only if no other is given.

    `opposites` maps a switch to the spelling that turns it off. Flags of `said_elsewhere` are left out. Raises
    OptionError for an unusable file.
    """
    path, rest = split_config(arguments)
    if path is None:
        return arguments
    if sum(each.partition("=")[0] == CONFIG_FLAG for each in arguments) > 1:
        raise StartError("--config may be given once, got it more often")
    if Path(path).suffix not in (".yaml", ".yml"):
        raise StartError(f"--config must name a file that ends in .yaml or .yml, got {path!r}")
    settings = read_settings(path)
    names_model = bool(rest) and not rest[0].startswith("-")
    if names_model:
        settings = {key: value for key, value in settings.items() if key not in ("model", "model_tag")}
    from_file = [
        each
        for key, value in settings.items()
        if f"--{key.replace('_', '-')}" not in said_elsewhere
        for each in _as_arguments(f"--{key}", value, opposites)
    ]
    # The model comes first, since a flag with a list of values would consume it.
    return [*rest[:names_model], *from_file, *rest[names_model:]]


def read_settings(path: str) -> dict[str, Any]:
    """Return the flags in a YAML file with their values. Raises OptionError for an unusable file."""
    try:
        settings = load_yaml(read_text(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(f"--config {path} cannot be read: {reason}") from error
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise StartError(f"--config {path} must map names of flags to values, got {type(settings).__name__}")
    return settings


def place_in_file(arguments: list[str], message: str) -> str | None:
    """Return the file and key of `--config` that an error message is about; None where a flag gave the value."""
    path, _ = split_config(arguments)
    settings = {} if path is None else read_settings(path)
    for key, value in settings.items():
        flag = f"--{key.replace('_', '-')}"
        spellings = next((each.spellings for each in options_of(ServeOptions) if flag in each.spellings), (flag,))
        is_misspelt = message.startswith((f"no such option: {flag}", f"unexpected argument: {value}"))
        if is_misspelt or is_about(message, spellings, value):
            return f"{path} key {key}"
    return None


def _as_arguments(flag: str, value: Any, opposites: Mapping[str, str]) -> list[str]:
    if isinstance(value, bool):
        if value:
            return [flag]
        opposite = opposites.get(flag.replace("_", "-"))
        return [opposite] if opposite else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, str(value)]


def with_objects(arguments: list[str]) -> list[str]:
    """Return `arguments` with the members of each dotted flag joined into one JSON value at the end, as in vLLM.

    `--flag.list+ a` appends to a list. Raises OptionError for a member without a value.
    """
    plain: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    left = iter(arguments)
    for argument in left:
        name, has_value, text = argument.partition("=")
        if not argument.startswith("-") or "." not in name or _is_number(name):
            plain.append(argument)
            continue
        if not has_value:
            following = next(left, None)
            if following is None:
                raise OptionError(f"{name} must be given a value")
            text = following
        flag, *keys = name.removesuffix("+").split(".")
        value: Any = text.split(",") if name.endswith("+") else _value(text)
        for key in reversed(keys):
            value = {key: value}
        _merge(objects.setdefault(flag, {}), value)
    return plain + [each for flag, value in objects.items() for each in (flag, json.dumps(value))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(text: str) -> Any:
    """Parse JSON or a number with a suffix; return any other text unchanged."""
    try:
        return load_json(text)
    except ValueError:
        pass
    try:
        return read_size(text)
    except ValueError:
        return text


def _merge(known: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        before = known.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            known[key] = value


NO_EFFECT_FLAG = "--accepted-without-effect"
"""Our flag that lists vLLM's flags without effect."""

FITTED_FLAG, FITS_FLAG = "--max-model-len", "--fits-max-model-len"
"""vLLM's flag whose value may be `auto`, and our flag for that value."""

REDUNDANT_EXPERTS_FLAG = "--num-redundant-experts"
"""Our flag for the copies of experts in vLLM's --eplb-config."""

_LEVEL = re.compile(r"-O=?(\d+)")


def rewritten(
    arguments: list[str],
    own_flags: Collection[str],
    table: Mapping[str, VllmFlag],
    in_environment: Collection[str] = (),
) -> list[str]:
    """Rewrite `arguments` from the syntax of `table` to ours, for a command with the flags `own_flags`.

    A flag of `table` keeps the last of its values, as argparse does, unless it appends them. An unknown flag is
    unchanged; the command reports it. Flags `in_environment`, and further ones of our own in `arguments`, win over the
    file of `--config`. Raises OptionError for a bad value.
    """
    opposites = {flag.name: flag.opposites[0] for flag in table.values() if flag.opposites}
    ours = {_spelled(each, table, own_flags).partition("=")[0] for each in arguments if each.startswith("--")}
    expanded = without_config_file(
        arguments, opposites, {*in_environment, *(ours.intersection(own_flags) - table.keys())}
    )
    named = with_objects([_spelled(each, table, own_flags) for each in _with_long_levels(expanded)])
    words: list[list[str]] = []
    single: dict[str, list[str]] = {}
    lists: dict[str, list[str]] = {}
    without_effect: dict[str, str] = {}
    experts_config = "{}"
    for flag, spelling, values in _flags(named, table):
        if flag is None:
            words.append([spelling])
            continue
        known = next((each for each in flag.spellings if each in own_flags), None)
        if known is None:
            without_effect[flag.name] = flag.opposites[0] if spelling in flag.opposites else flag.name
            experts_config = values[0] if flag.name == "--eplb-config" else experts_config
        elif flag.is_switch:
            words.append([f"--no-{known.removeprefix('--')}" if spelling in flag.opposites else known])
        elif flag.number == "append":
            lists.setdefault(known, []).extend(values)
        elif flag.number:
            lists[known] = values
        else:
            single.get(known, []).clear()
            is_fitted = flag.name == FITTED_FLAG and values[0] == FITTED
            single[known] = [known, "0", FITS_FLAG] if is_fitted else [known, values[0]]
            words.append(single[known])
    own = [each for parts in words for each in parts]
    own += [each for flag_name, values in lists.items() for each in (flag_name, json.dumps(values))]
    own += _redundant_experts(experts_config, own_flags)
    if without_effect:
        own += [NO_EFFECT_FLAG, ",".join(sorted(without_effect.values()))]
    return own


def _redundant_experts(config: str, own_flags: Collection[str]) -> list[str]:
    """Return our flag for the copies of experts in a value of --eplb-config; nothing without a count above 0."""
    number = load_json(config).get("num_redundant_experts")
    is_given = type(number) is int and number > 0 and REDUNDANT_EXPERTS_FLAG in own_flags
    return [REDUNDANT_EXPERTS_FLAG, str(number)] if is_given else []


def _with_long_levels(arguments: list[str]) -> Iterator[str]:
    """Expand `-O2` and `-O 2` to `--optimization-level 2`."""
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        match = _LEVEL.fullmatch(argument)
        if match is not None:
            yield from ("--optimization-level", match[1])
        elif argument == "-O" and following.isdecimal():
            yield "--optimization-level"
        else:
            yield argument


def _spelled(argument: str, table: Mapping[str, VllmFlag], own_flags: Collection[str]) -> str:
    """Return a flag with dashes for underscores, and an unambiguous abbreviation in full."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    head, dot, members = name.partition(".")
    head = head.replace("_", "-")
    if head != "--" and head not in table and head not in own_flags:
        candidates = {flag.name: spelling for spelling, flag in table.items() if spelling.startswith(head)}
        if len(candidates) == 1:
            ((flag_name, spelling),) = candidates.items()
            head = flag_name if flag_name.startswith(head) else spelling
    return head + dot + members + equals + value


def _flags(arguments: list[str], table: Mapping[str, VllmFlag]) -> Iterator[tuple[VllmFlag | None, str, list[str]]]:
    """Yield each flag of vLLM with its spelling and checked values; yield None with any other argument."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        spelling, has_value, text = argument.partition("=")
        flag = table.get(spelling) if argument.startswith("-") else None
        if flag is None:
            yield None, argument, []
        elif flag.is_switch:
            if has_value:
                raise OptionError(f"{spelling} takes no value, got {text!r}")
            yield flag, spelling, []
        else:
            values = [text] if has_value else _values(flag, arguments, index)
            index += 0 if has_value else len(values)
            yield flag, spelling, [checked(flag, value) for value in values]


def _values(flag: VllmFlag, arguments: list[str], start: int) -> list[str]:
    """Return the values after a flag: one value, or all up to the next flag."""
    following = list(itertools.takewhile(lambda each: not is_flag(each), arguments[start:]))
    if flag.number == "?":
        return following[:1]
    if not following:
        raise OptionError(f"{flag.name} must be given a value")
    return following if flag.number == "+" else following[:1]


def is_flag(argument: str) -> bool:
    """Whether an argument looks like a flag; a negative number does not."""
    return len(argument) > 1 and argument[0] == "-" and not re.fullmatch(r"-\d+(\.\d*)?|-\.\d+", argument)


# Which errors vLLM finds with a command line that its parser accepts, and so ends with exit code 1 instead of 2.

_READ_BY_PARSER = ("--lora-modules",)
"""Flags whose values vLLM's parser reads, besides the configuration objects."""
_MODEL_FILE = "config.json: "
"""Part of an error about the model and its deployment, which names the model's file first."""
_OWN_SETTINGS = ("-", "GPU ")
"""Beginnings of errors about a flag, and about --hardware, which vLLM does not have."""


def is_refused_by_configuration(error: BlisError) -> bool:
    """Whether an error is about a value of vLLM's that its parser accepts.

    vLLM's parser reads types, choices and configuration objects; bounds, and what fits together, come later.
    """
    if isinstance(error, StartError):
        return True
    message = str(error)
    if isinstance(error, EngineError) and (_MODEL_FILE in message or not message.startswith(_OWN_SETTINGS)):
        return True
    label = message.partition(" ")[0].rstrip(":")
    flags = next((each.flags for each in options_of(ServeOptions) if label in (each.label, *each.flags)), (label,))
    table = read_table()
    known = next((table[each] for each in flags if each in table), None)
    return known is not None and known.name not in (*members_of(), *_READ_BY_PARSER)
