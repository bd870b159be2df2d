"""The commands that a point can be: simulations that print their figures as JSON."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.options import OptionError, options_from
from blis_sim.options.command_line import check_required


@dataclass(frozen=True, slots=True)
class SimulationRow:
    """Where a command lives. Its module is imported only when it is used."""

    module: str
    options: str


SIMULATIONS: Mapping[str, SimulationRow] = {
    "run": SimulationRow("replay.run_command", "RunOptions"),
    "replay": SimulationRow("replay.command", "ReplayOptions"),
}

_OF_ONE_RUN = (
    "json",
    "results_path",
    "metrics_path",
    "trace_output",
    "record_itl",
    "itl_output",
    "saturation_report",
    "decisions_path",
)
"""Settings that say where the output of one run goes."""

RECORDINGS = ("trace", "trace_header", "trace_data")
"""Settings that name a file of a recording."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A command: its name, the class of its options, and what it does with them."""

    name: str
    options: type
    run: Callable[[Any], int]

    def options_with(self, settings: Mapping[str, Any]) -> Any:
        """The options of one point, which prints JSON. Raises BlisError for settings that are wrong, or of one run."""
        for name in _OF_ONE_RUN:
            if settings.get(name):
                raise OptionError(f"--{name.replace('_', '-')} is for one run, here are many")
        check_required(self.options, settings)
        return options_from(self.options, **{**settings, "json": True})


def simulation(name: Any) -> Simulation:
    """The command of this name, or of whatever stands in its place in a file. Raises OptionError."""
    row = SIMULATIONS.get(name) if isinstance(name, str) else None
    if row is None:
        raise OptionError(f"unknown command {name!r}, known are {', '.join(SIMULATIONS)}")
    module = importlib.import_module(row.module)
    return Simulation(name, getattr(module, row.options), module.run)
