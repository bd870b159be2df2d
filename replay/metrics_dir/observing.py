"""Whether a run is observed, and what happens around it then. Runs that are not load nothing more than this module."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blis_sim.options import OptionError

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.cluster.options import ClusterOptions
    from blis_sim.engine.core import Engine
    from blis_sim.engine.deployment import Deployment
    from blis_sim.engine.ranks import RankGroup
    from blis_sim.engine.simulation import Simulation
    from replay.report_options import ReportOptions


class RunSettings(Protocol):
    """The options of a command that simulates."""

    @property
    def cluster(self) -> "ClusterOptions": ...

    @property
    def report(self) -> "ReportOptions": ...


@contextmanager
def observing(
    options: RunSettings, deployment: "Deployment", simulation: "Engine | RankGroup | Cluster", command: str
) -> "Iterator[Simulation]":
    """Yield what a run is to advance in place of `simulation`, and write its folder of metrics if it is to have one.

    Raises OptionError or TraceError for a folder that cannot be written.
    """
    path = options.report.metrics_dir
    if path is None:
        yield simulation
        return
    from replay.metrics_dir.facts import run_facts
    from replay.metrics_dir.observed import ObservedSimulation
    from replay.metrics_dir.pictures import draw_pictures
    from replay.metrics_dir.recorder import Recorder

    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--metrics-dir {path} cannot be made: {(error.strerror or str(error)).lower()}") from error
    facts = run_facts(options, options.cluster, deployment, simulation, command)
    recorder = Recorder(folder, facts, simulation.instances)
    try:
        yield ObservedSimulation(simulation, recorder)
    except BaseException:
        recorder.abandon()
        raise
    recorder.close(simulation.clock)
    draw_pictures(recorder, simulation.clock)
