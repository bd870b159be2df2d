"""Settings that all commands share which compute points."""

from typing import Any

from blis_sim.options import option
from blis_sim.options.room import MOST_PROCESSES


def vary_option(help_text: str) -> Any:
    """A setting of the simulation with the values that it takes."""
    return option((), help_text, metavar="NAME=VALUE,...", repeatable=True)


def simulation_option(help_text: str) -> Any:
    """The command line of the simulation, as words that are no flags of ours."""
    return option((), help_text, positional=True, metavar="SIMULATION")


def processes_option() -> Any:
    """How much of this machine is used."""
    return option(None, "How many processes compute. Default: one per core.", at_least=1, at_most=MOST_PROCESSES)
