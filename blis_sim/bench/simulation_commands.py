"""The commands that a point can be, the settings of those that compute points, and a short name of a point."""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_sim.installation import check_ray
from blis_sim.options import ExclusionError, OptionError, option, options_from
from blis_sim.options.command_line import check_required
from blis_sim.options.option import MOST_PROCESSES
from blis_sim.options.progress import no_progress

if TYPE_CHECKING:
    from replay.output.findings import FinishedRun


def vary_option(help_text: str, heading: str = "") -> Any:
    """A setting of the simulation with the values that it takes."""
    return option((), help_text, metavar="NAME=VALUE,...", repeatable=True, heading=heading)


def simulation_option(help_text: str) -> Any:
    """Return the option for the command line of the simulation: the arguments that are no flags of this command."""
    return option((), help_text, positional=True, metavar="SIMULATION")


def processes_option() -> Any:
    """Return the option for the number of processes."""
    return option(None, "Number of processes that compute. Default: one per core.", at_least=1, at_most=MOST_PROCESSES)


def ray_option() -> Any:
    """Return the option that computes on a Ray cluster."""
    return option(
        False, "Compute on a Ray cluster (needs ray): the cluster at --ray-address, else a new one on this host."
    )


def ray_address_option() -> Any:
    """Return the option for the address of a Ray cluster."""
    return option(None, "Address of the Ray cluster, such as auto or ray://host:10001.")


def check_cluster(ray: bool, ray_address: str | None, processes: int | None) -> None:
    """Raise OptionError where the options of Ray do not fit together or Ray is not installed."""
    if ray:
        if processes is not None:
            raise ExclusionError("--processes", "--ray", ": a Ray cluster has its own")
        check_ray()
    elif ray_address is not None:
        raise OptionError("--ray-address needs --ray")


def check_table(flag: str, path: str | None) -> None:
    """Raise OptionError for a path that does not end in .csv; a path of None means no file."""
    if path is not None and Path(path).suffix != ".csv":
        raise OptionError(f"{flag} must be a file that ends in .csv, got {path}")


SIMULATIONS: Mapping[str, tuple[str, str]] = {
    "run": ("replay.run_command", "RunOptions"),
    "replay": ("replay.command", "ReplayOptions"),
}
"""The module of each command, which is imported when it is used, and its class of options."""

_SINGLE_RUN_SETTINGS = (
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
    """A command: its name, the class of its options, and the function that simulates without output."""

    name: str
    options: type
    simulate: Callable[[Any], "FinishedRun"]

    def options_with(self, settings: Mapping[str, Any]) -> Any:
        """The options of one point. Raises BlisError for settings that are wrong, or of one run."""
        for name in _SINGLE_RUN_SETTINGS:
            if settings.get(name):
                raise OptionError(f"--{name.replace('_', '-')} is for one run, here are many")
        check_required(self.options, settings)
        return options_from(self.options, **settings)


def simulation(name: Any) -> Simulation:
    """The command of this name, or of whatever stands in its place in a file. Raises OptionError."""
    row = SIMULATIONS.get(name) if isinstance(name, str) else None
    if row is None:
        raise OptionError(f"unknown command {name!r}, known are {', '.join(SIMULATIONS)}")
    module, options = row
    options_class = getattr(importlib.import_module(module), options)
    return Simulation(name, options_class, {"run": _run, "replay": _replay}[name])


def _run(options: Any) -> "FinishedRun":
    from replay.report_options import ignore_note
    from replay.run_command import simulate_run

    return simulate_run(options, ignore_note, no_progress)


def _replay(options: Any) -> "FinishedRun":
    from blis_sim.engine.cluster.settings import SeededTieBreaker
    from replay.command import simulate_replay
    from replay.report_options import ignore_note

    return simulate_replay(options, SeededTieBreaker(options.seed), ignore_note, no_progress)


_DIGITS = 16


def digest_of(command: str, settings: Mapping[str, Any]) -> str:
    """Return a hash of a command, its settings and the content of the files that settings name."""
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
            for path in _input_files(name, Path(settings[name])):
                try:
                    if path.is_file():
                        yield hashlib.sha256(path.read_bytes()).digest()
                except (OSError, ValueError):  # no name of a file, or one that may not be read: the point reports it
                    continue


def _input_files(setting: str, path: Path) -> Iterator[Path]:
    """The files that are read for a setting: a model may be a folder, and rows lie beside the header of a trace."""
    yield path
    yield path / "config.json"
    if setting in RECORDINGS and path.name:
        yield path.with_suffix(".csv")
        yield path.with_suffix(".csv.gz")
