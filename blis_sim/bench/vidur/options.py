"""The command line of Vidur and SimAI as settings of ours: a flag for each setting of each group, spelled as there."""

import dataclasses
from typing import Any

from blis_sim.bench.vidur import settings as vidur
from blis_sim.options import OptionError, check_options, option

COMPATIBLE = ("vidur", "simai")


def _fields() -> list[tuple[str, Any, Any]]:
    """Return the fields of the options: name, type and `option()` of each."""
    fields: list[tuple[str, Any, Any]] = []
    groups = [*vidur.GROUPS, *(group for choice in vidur.CHOICES for group in choice.kinds.values())]
    for choice in vidur.CHOICES:
        said = f"Kind of {choice.flag.removesuffix('_type')}."
        made = option(choice.default, said, flags=(f"--{choice.flag}",), choices=tuple(choice.kinds), heading="Kinds")
        fields.append((choice.flag, str, made))
    for group in groups:
        heading = group.prefix or "Simulation"
        for setting in group.settings:
            name = vidur.setting_name(group, setting)
            said = f"As Vidur's {setting.name} of {heading}."
            made = option(setting.default, said, flags=(f"--{name}",), at_least=setting.at_least, heading=heading)
            fields.append((name, setting.type, made))
    return fields


def _check(options: Any) -> None:
    check_options(options)
    for name in ("replica_config_memory_margin_fraction",):
        if getattr(options, name) >= 1:
            raise OptionError(f"--{name} must be below 1, got {getattr(options, name)}")


_OWN: list[tuple[str, Any, Any]] = [
    (
        "operators",
        str | None,
        option(
            None,
            "Times of the operators of a layer: a folder has Vidur's profiling tables, of which forest:DIR and "
            "polynomial:DIR learn; vidur-tables:PREFIX takes PREFIX_compute.csv, PREFIX_attn_decode.csv and "
            "PREFIX_attn_prefill.csv, gzipped or not; aicb:DIR takes the layers of models with experts that AICB "
            "measured.",
            metavar="SOURCE",
            heading="Beside Vidur's flags",
        ),
    ),
    (
        "compat",
        str,
        option(
            "",
            "Program whose results are to be equal to the last digit, its errors included; without it they are "
            "corrected.",
            choices=("", *COMPATIBLE),
        ),
    ),
]

VidurOptions = dataclasses.make_dataclass(
    "VidurOptions", [*_OWN, *_fields()], frozen=True, slots=True, kw_only=True, namespace={"__post_init__": _check}
)


def is_original(options: Any) -> bool:
    """Return whether results are to be those of an original, its errors included."""
    return options.compat in COMPATIBLE


def chosen(options: Any, choice: vidur.Choice) -> vidur.Group:
    """Return the kind that was chosen."""
    return choice.kinds[getattr(options, choice.flag)]


def values_of(options: Any, group: vidur.Group) -> dict[str, Any]:
    """Return the values of the settings of a group by their names in it."""
    return {each.name: getattr(options, vidur.setting_name(group, each)) for each in group.settings}


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line of Vidur in our syntax: lists, which it separates by spaces, with commas."""
    lists = {f"--{name}" for name, kind, _ in _fields() if kind not in (str, int, float, bool) and "tuple" in str(kind)}
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
