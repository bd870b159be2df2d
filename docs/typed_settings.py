"""Makes `blis_sim/api/settings.py`: the keyword arguments of the Python interface, made of the options of commands."""

import importlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blis_sim.api.commands import KINDS, OMITTED_SETTINGS
from blis_sim.cli.commands import COMMANDS
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import options_of
from blis_sim.options.option import Setting
from replay.report_options import ReportOptions

FOLDER = Path(__file__).resolve().parent.parent / "blis_sim" / "api"

_ALIASES = """\
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias, TypedDict

Path: TypeAlias = str | PathLike[str]
Json: TypeAlias = str | Mapping[str, Any]
\"\"\"A JSON text, or the object itself.\"\"\"
Policy: TypeAlias = str | Callable[..., Any]
\"\"\"The name of a policy, or a class or function of a module in its place.\"\"\""""
_SHARED = {
    "EngineSettings": DeploymentOptions,
    "ClusterSettings": ClusterOptions,
    "ReportSettings": ReportOptions,
}
_PATHS = ("FILE", "DIR", "FOLDER", "PREFIX", "PATH")
_ALSO_PATHS = ("model", "model_config_folder", "hardware_config", "coefficients", "tokenizer")


@dataclass(frozen=True, slots=True)
class _Class:
    name: str
    bases: tuple[str, ...]
    settings: tuple[Setting, ...]


def texts() -> Mapping[Path, str]:
    """The content of the file."""
    head = f'"""The keyword arguments of all functions. Written by `python docs/generate.py`."""\n\n{_ALIASES}'
    return {FOLDER / "settings.py": "\n\n\n".join([head, *map(_source, _classes())]) + "\n"}


def _classes() -> Iterator[_Class]:
    shared = {name: _named(kind) for name, kind in _SHARED.items()}
    found = {}
    for command in KINDS:
        row = COMMANDS[command]
        found[command] = _named(getattr(importlib.import_module(row.module), row.options))
    run, replay = found["run"], found["replay"]
    known = (*shared["ClusterSettings"], *shared["ReportSettings"])
    shared["SimulationSettings"] = _without([each for each in run if each in replay], known)
    shared["TraceSettings"] = _without(replay, run)
    found["sweep"], found["plan"] = ((*found[each], *shared["TraceSettings"]) for each in ("sweep", "plan"))
    bases = {
        "EngineSettings": (),
        "ClusterSettings": ("EngineSettings",),
        "ReportSettings": (),
        "TraceSettings": (),
        "SimulationSettings": ("ClusterSettings", "ReportSettings"),
        KINDS["run"]: ("SimulationSettings",),
        KINDS["replay"]: ("SimulationSettings", "TraceSettings"),
        **{KINDS[each]: (KINDS["run"], "TraceSettings") for each in ("sweep", "plan")},
        KINDS["calibrate"]: (),
        KINDS["fit"]: ("EngineSettings",),
        KINDS["serve"]: ("ClusterSettings",),
    }
    settings = {**shared, **{KINDS[command]: each for command, each in found.items()}}
    inherited: dict[str, set[str]] = {}
    for name, above in bases.items():
        keys = {key for base in above for key in inherited[base]}
        own = tuple(each for each in settings[name] if each.name not in keys)
        inherited[name] = keys | {each.name for each in own}
        yield _Class(name, above, own)


def _named(kind: type) -> tuple[Setting, ...]:
    """The settings that are given by name, and are not of the printing alone."""
    return tuple(
        each
        for each in options_of(kind)
        if not (each.option.positional or each.option.hidden or each.name in OMITTED_SETTINGS)
    )


def _without(settings: Iterable[Setting], others: Iterable[Setting]) -> tuple[Setting, ...]:
    names = {each.name for each in others}
    return tuple(each for each in settings if each.name not in names)


def _source(each: _Class) -> str:
    lines = [f"class {each.name}({', '.join(each.bases or ('TypedDict',))}, total=False):"]
    rows = [(name, kind) for setting in each.settings for name, kind in _keys(setting)]
    return "\n".join([*lines, *(f"    {name}: {kind}" for name, kind in rows)])


def _keys(setting: Setting) -> Iterator[tuple[str, str]]:
    """A setting by its name, and by the names of its other flags, such as those of vLLM."""
    names = [setting.name, *(flag[2:].replace("-", "_") for flag in setting.flags if flag.startswith("--"))]
    for name in dict.fromkeys(names):
        yield name, _type(setting)


def _type(setting: Setting) -> str:
    optional = " | None" if setting.kind is not setting.type else ""
    if setting.option.infinity is not None:
        return f"{setting.kind.__name__} | str{optional}"
    if setting.option.open_to is not None:
        return f"Sequence[Policy]{optional}" if setting.is_list else f"Policy{optional}"
    if setting.option.metavar == "JSON":
        return f"Json{optional}"
    if setting.kind is str and (setting.option.metavar in _PATHS or setting.name in _ALSO_PATHS):
        return f"Path{optional}"
    if setting.is_list:
        return f"Sequence[{typing.get_args(setting.kind)[0].__name__}]{optional}"
    return f"{setting.kind.__name__}{optional}"
