"""The configurations of a comparison: engines and clusters from flags."""

import shlex
from dataclasses import dataclass

from blis_sim.bench.compare.options import CompareOptions
from blis_sim.engine.cluster.build import notes_on_cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.options import OptionError, options_from
from blis_sim.options.command_line import read_command_line

_MODEL = "qwen/qwen3-14b"
"""The model of sides that name none."""
_CURRENT = ("--snapshot-refresh-interval", "0", "--cache-signal-delay", "0")
_ADAPTIVE = ("--engine", "adaptive", "--routing-policy", "weighted", "--routing-scorers", "cache-utilisation:1")
_FIFO = ("--engine", "adaptive-fifo")


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration with its name."""

    name: str
    flags: str
    cluster: ClusterOptions
    deployment: Deployment

    @property
    def notes(self) -> list[str]:
        """Notes on the configuration, shown before a run."""
        return [*self.deployment.notes, *notes_on_cluster(self.cluster, self.deployment)]


def sides_of(options: CompareOptions) -> list[Side]:
    """The configurations of the options. Raises BlisError for one that cannot be."""
    if options.baseline:
        shared = shlex.split(options.sides[0]) if options.sides else []
        workers = ["--num-instances", str(options.workers)]
        given = {"adaptive": [*_ADAPTIVE, *_CURRENT, *workers, *shared], "fifo": [*_FIFO, *workers, *shared]}
    else:
        given = {chr(ord("A") + number): shlex.split(side) for number, side in enumerate(options.sides)}
    names = [name.strip() for name in options.names.split(",")] if options.names else list(given)
    if len(names) != len(given) or len(set(names)) != len(names):
        raise OptionError(f"--names must be {len(given)} different names, got {options.names!r}")
    return [_side(name, arguments) for name, arguments in zip(names, given.values(), strict=True)]


def _side(name: str, arguments: list[str]) -> Side:
    found = read_command_line(ClusterOptions, arguments)
    if found.asks_for_help:
        raise OptionError("flags of a configuration are those of `blis run`; see `blis run --help`")
    cluster = with_policies(options_from(ClusterOptions, **{"model": _MODEL, **found.values}))
    return Side(name, shlex.join(arguments), cluster, resolve(cluster.deployment))
