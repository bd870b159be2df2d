"""The settings of Vidur and SimAI as options of this product: `settings.csv` has their names, order and defaults.

A setting is a flag of the name of its group and its own: `--replica_config_device`. A group with a choice of kinds has
a flag that ends with `_type`. Facts: vidur/config/config.py.
"""

import csv
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from blis_sim.options import OptionError, check_options, option

COMPATIBLE = ("vidur", "simai")
_TYPES: Mapping[str, tuple[Any, Callable[[str], Any]]] = {
    "int": (int, int),
    "float": (float, float),
    "str": (str, str),
    "bool": (bool, lambda text: text == "yes"),
    "ints": (tuple[int, ...], lambda text: tuple(map(int, text.split()))),
    "strs": (tuple[str, ...], lambda text: tuple(text.split())),
}
"""The types of the table, and what reads a default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in its group, its flag without hyphens, its type and default."""

    name: str
    flag: str
    type: Any
    default: Any
    at_least: float | None
    is_of_simai: bool
    no_effect: str
    """Why it changes nothing here; empty where it does."""


@dataclass(frozen=True, slots=True)
class Group:
    """Settings with one prefix. `name` is what its kind is called in `config.json`, where there are several kinds."""

    prefix: str
    name: str = ""
    settings: list[Setting] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Choice:
    """Kinds of a group, one of which is chosen by the flag `--{flag}`."""

    flag: str
    default: str
    kinds: dict[str, Group] = field(default_factory=dict)


MAIN, CLUSTER = Group(""), Group("cluster_config")
REPLICA, METRICS = Group("replica_config"), Group("metrics_config")
GLOBAL_SCHEDULER = Choice("global_scheduler_config_type", "round_robin")
REPLICA_SCHEDULER = Choice("replica_scheduler_config_type", "sarathi")
REQUESTS = Choice("request_generator_config_type", "synthetic")
INTERVALS = Choice("interval_generator_config_type", "poisson")
LENGTHS = Choice("length_generator_config_type", "fixed")
PREDICTOR = Choice("execution_time_predictor_config_type", "random_forrest")
CHOICES = (GLOBAL_SCHEDULER, REPLICA_SCHEDULER, REQUESTS, INTERVALS, LENGTHS, PREDICTOR)


def _setting(row: Mapping[str, str]) -> Setting:
    """Return the setting of a row of the table."""
    kind, read = _TYPES[row["type"]]
    default = read(row["default"]) if row["default"] else None
    at_least = float(row["at_least"]) if row["at_least"] else None
    flag = "_".join(filter(None, (row["prefix"], row["name"])))
    return Setting(
        row["name"],
        flag,
        kind if row["default"] else kind | None,
        default,
        at_least,
        row["of"] == "SimAI",
        row["no_effect"],
    )


def _read_table() -> list[Group]:
    """Fill the groups from the table. Returns them in its order."""
    groups, choices = [MAIN, CLUSTER, REPLICA, METRICS], {choice.flag: choice for choice in CHOICES}
    by_prefix = {group.prefix: group for group in groups}
    for row in csv.DictReader(files(__package__).joinpath("settings.csv").read_text().splitlines()):
        prefix = row["prefix"]
        if prefix not in by_prefix:
            by_prefix[prefix] = choices[row["choice"]].kinds[row["kind"]] = Group(prefix, row["kind"])
        if row["name"]:
            by_prefix[prefix].settings.append(_setting(row))
    return list(by_prefix.values())


GROUPS = _read_table()
SETTINGS = tuple(setting for group in GROUPS for setting in group.settings)


def _check(options: Any) -> None:
    check_options(options)
    if (margin := options.replica_config_memory_margin_fraction) >= 1:
        raise OptionError(f"--replica_config_memory_margin_fraction must be below 1, got {margin}")


def _fields() -> list[tuple[str, Any, Any]]:
    """Return the fields of the options: name, type and `option()` of each."""
    operators = option(
        None,
        "Times of the operators of a layer; without it those of ./data/profiling if there is such a folder, else "
        "steps of --latency-model kernels or fitted. A folder has Vidur's profiling tables, of which forest:DIR and "
        "polynomial:DIR learn. vidur-tables:PREFIX takes PREFIX_compute.csv, PREFIX_attn_decode.csv and "
        "PREFIX_attn_prefill.csv, gzipped or not. aicb:DIR takes the layers of models with experts that AICB measured.",
        metavar="SOURCE",
        heading="Beside Vidur's flags",
    )
    compat = option(
        "",
        "Program whose results are to be equal to the last digit, its errors included; without it they are corrected.",
        choices=("", *COMPATIBLE),
    )
    fields: list[tuple[str, Any, Any]] = [("operators", str | None, operators), ("compat", str, compat)]
    for choice in CHOICES:
        said = f"Kind of {choice.flag.removesuffix('_type')}."
        made = option(choice.default, said, flags=(f"--{choice.flag}",), choices=tuple(choice.kinds), heading="Kinds")
        fields.append((choice.flag, str, made))
    for group in GROUPS:
        heading = group.prefix or "Simulation"
        for each in group.settings:
            said = f"As Vidur's {each.name} of {heading}."
            made = option(each.default, said, flags=(f"--{each.flag}",), at_least=each.at_least, heading=heading)
            fields.append((each.flag, each.type, made))
    return fields


VidurOptions = dataclasses.make_dataclass(
    "VidurOptions", _fields(), frozen=True, slots=True, kw_only=True, namespace={"__post_init__": _check}
)


def is_original(options: Any) -> bool:
    """Return whether results are to be those of an original, its errors included."""
    return options.compat in COMPATIBLE


def chosen(options: Any, choice: Choice) -> Group:
    """Return the kind that was chosen."""
    return choice.kinds[getattr(options, choice.flag)]


def values_of(options: Any, group: Group) -> dict[str, Any]:
    """Return the values of the settings of a group by their names in it."""
    return {each.name: getattr(options, each.flag) for each in group.settings}


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line of Vidur in our syntax: lists, which it separates by spaces, with commas."""
    lists = {f"--{each.flag}" for each in SETTINGS if isinstance(each.default, tuple)}
    found: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        found.append(word)
        if word in lists:
            values: list[str] = []
            while rest and not rest[0].startswith("--"):
                values.append(rest.pop(0))
            found.append(",".join(values))
    return found
