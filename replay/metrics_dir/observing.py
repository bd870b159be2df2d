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
    """Yield what a run is to advance in place of `simulation`, and write its folder of metrics and its request graphs.

    Raises OptionError or TraceError for what cannot be written.
    """
    report = options.report
    if not report.is_observed:
        yield simulation
        return
    from replay.metrics_dir.facts import kv_traffic, run_facts
    from replay.metrics_dir.observed import ObservedSimulation
    from replay.metrics_dir.pictures import draw_pictures
    from replay.metrics_dir.recorder import Recorder
    from replay.metrics_dir.request_graphs import RequestGraphs
    from replay.provenance import title_of

    folder = None
    if report.metrics_dir is not None:
        facts = run_facts(options, options.cluster, deployment, simulation, command)
        folder = Recorder(_made(report.metrics_dir), facts, simulation.instances)
    graphs = None
    if report.graph_output is not None:
        traffic = kv_traffic(simulation, deployment)
        graphs = RequestGraphs(Path(report.graph_output), traffic, simulation.instances)
    recorders = [each for each in (folder, graphs) if each is not None]
    try:
        yield ObservedSimulation(simulation, recorders)
    except BaseException:
        for each in recorders:
            each.abandon()
        raise
    for each in recorders:
        each.close(simulation.clock)
    if folder is not None:
        draw_pictures(folder, simulation.clock, title_of(options, deployment))


def _made(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--metrics-dir {path} cannot be made: {(error.strerror or str(error)).lower()}") from error
    return folder
