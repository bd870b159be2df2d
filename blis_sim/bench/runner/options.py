"""Settings and command lines of the commands that compute points."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, option, options_of
from blis_sim.options.command_line import HELP, HELP_LETTER
from blis_sim.options.extras import check_ray
from blis_sim.options.limits import MOST_PROCESSES


def vary_option(help_text: str) -> Any:
    """A setting of the simulation with the values that it takes."""
    return option((), help_text, metavar="NAME=VALUE,...", repeatable=True)


def simulation_option(help_text: str) -> Any:
    """The command line of the simulation, as words that are no flags of ours."""
    return option((), help_text, positional=True, metavar="SIMULATION")


def processes_option() -> Any:
    """Return the option for the number of processes."""
    return option(None, "How many processes compute. Default: one per core.", at_least=1, at_most=MOST_PROCESSES)


def ray_option() -> Any:
    """Return the option that computes on a Ray cluster."""
    return option(False, "Compute on a Ray cluster instead (needs ray): the one of --ray-address, else one here.")


def ray_address_option() -> Any:
    """Return the option for the address of a Ray cluster."""
    return option(None, "Address of the cluster, such as auto or ray://host:10001.")


def check_cluster(ray: bool, ray_address: str | None, processes: int | None) -> None:
    """Raise OptionError where the options of Ray do not fit together or Ray is not installed."""
    if ray:
        if processes is not None:
            raise OptionError("--processes and --ray exclude each other: a Ray cluster has its own")
        check_ray()
    elif ray_address is not None:
        raise OptionError("--ray-address needs --ray")


def own_flags_first(arguments: Sequence[str], options_class: type) -> list[str]:
    """The arguments with those of `options_class` in front, and all others behind `--`, as positional arguments.

    Raises OptionError for a flag whose value is missing.
    """
    settings = [setting for setting in options_of(options_class) if not setting.option.positional]
    valued = {flag for each in settings if each.kind is not bool for flag in each.flags}
    switches = {flag for each in settings if each.kind is bool for flag in each.spellings} | {HELP, HELP_LETTER}
    own, others = [], []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        spelling, has_value, _ = argument.partition("=")
        if spelling in switches:
            own.append(argument)
        elif spelling in valued:
            if not has_value and not rest:
                raise OptionError(f"{spelling} must be given a value")
            own += [argument] if has_value else [argument, *rest[:1]]
            rest = rest if has_value else rest[1:]
        elif argument != "--":
            others.append(argument)
    return [*own, "--", *others]


def check_table(flag: str, path: str | None) -> None:
    """Raise OptionError when the CSV file that a flag names is not named as one. None asks for no file."""
    if path is not None and Path(path).suffix != ".csv":
        raise OptionError(f"{flag} must be a file that ends in .csv, got {path}")
