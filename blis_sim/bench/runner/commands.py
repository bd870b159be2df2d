"""The commands that a point can be, and a short name made of everything that decides a point's figures."""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, options_from
from blis_sim.options.command_line import check_required


@dataclass(frozen=True, slots=True)
class SimulationRow:
    """Registration of a command. Its module is imported only when it is used."""

    module: str
    options: str


SIMULATIONS: Mapping[str, SimulationRow] = {
    "run": SimulationRow("replay.run_command", "RunOptions"),
    "replay": SimulationRow("replay.command", "ReplayOptions"),
}

_OF_ONE_RUN = (
    "json",
    "format",
    "provenance",
    "plot",
    "html",
    "results_path",
    "metrics_path",
    "trace_output",
    "record_itl",
    "itl_output",
    "saturation_report",
    "decisions_path",
)
"""Settings of the output paths of one run."""

RECORDINGS = ("trace", "trace_header", "trace_data")
"""Settings that name a file of a recording."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A command: its name, the class of its options, and what it does with them."""

    name: str
    options: type
    run: Callable[[Any], int]

    def options_with(self, settings: Mapping[str, Any]) -> Any:
        """The options of one point, which prints a report as JSON.

        Raises BlisError for settings that are wrong, or of one run.
        """
        for name in _OF_ONE_RUN:
            if settings.get(name):
                raise OptionError(f"--{name.replace('_', '-')} is for one run, here are many")
        check_required(self.options, settings)
        return options_from(self.options, **{**settings, "format": "report"})


def simulation(name: Any) -> Simulation:
    """The command of this name, or of whatever stands in its place in a file. Raises OptionError."""
    row = SIMULATIONS.get(name) if isinstance(name, str) else None
    if row is None:
        raise OptionError(f"unknown command {name!r}, known are {', '.join(SIMULATIONS)}")
    module = importlib.import_module(row.module)
    return Simulation(name, getattr(module, row.options), module.run)


_DIGITS = 16


def digest_of(command: str, settings: Mapping[str, Any]) -> str:
    """A hexadecimal name of these settings and of what is in the files they name."""
    described = json.dumps([command, sorted(settings.items())], default=list)
    found = hashlib.sha256(described.encode())
    for content in _files(settings):
        found.update(content)
    return found.hexdigest()[:_DIGITS]


def with_whole_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with absolute paths of their files, for a process in another folder."""
    return {name: str(Path(value).absolute()) if _is_path(value) else value for name, value in settings.items()}


def _is_path(value: Any) -> bool:
    if not isinstance(value, str) or not value:
        return False
    try:
        path = Path(value)
        return path.is_file() or ("/" in value and path.is_dir())
    except (OSError, ValueError):  # no name of a file
        return False


def _files(settings: Mapping[str, Any]) -> Iterator[bytes]:
    """The content of the files that settings name."""
    for name in sorted(settings):
        if isinstance(settings[name], str) and settings[name]:
            for path in _named(name, Path(settings[name])):
                try:
                    if path.is_file():
                        yield hashlib.sha256(path.read_bytes()).digest()
                except (OSError, ValueError):  # no name of a file, or one that may not be read: the point reports it
                    continue


def _named(setting: str, path: Path) -> Iterator[Path]:
    """The files that are read for a setting: a model may be a folder, and rows lie beside the header of a trace."""
    yield path
    yield path / "config.json"
    if setting in RECORDINGS and path.name:
        yield path.with_suffix(".csv")
        yield path.with_suffix(".csv.gz")
