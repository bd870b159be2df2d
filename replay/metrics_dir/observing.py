"""Observed runs: whether a run is one, and a simulation whose events go to a recorder on their way to the run.

Runs that are not observed load nothing more than this module.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.simulation import WrappedSimulation
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.data_parallel import RankGroup
    from blis_sim.engine.deployment import Deployment
    from blis_sim.engine.simulation import Simulation
    from replay.metrics_dir.recorder import Recorder, RequestGraphs
    from replay.provenance import SimulationOptions


class ObservedSimulation(WrappedSimulation):
    """`simulation`, whose arrivals and events all go to recorders, while the run gets only ends of requests."""

    def __init__(
        self, simulation: "Engine | RankGroup | Cluster", recorders: "SequenceOf[Recorder | RequestGraphs]"
    ) -> None:
        WrappedSimulation.__init__(self, simulation)
        self._recorders = recorders
        self._advance = _numbered(simulation)

    def submit(self, request: Request, at: Micros) -> Sequence:
        sequence = self._simulation.submit(request, at)
        for recorder in self._recorders:
            recorder.arrived([sequence])
        return sequence

    def submit_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        sequences = self._simulation.submit_all(requests, instants)
        for recorder in self._recorders:
            recorder.arrived(sequences)
        return sequences

    def advance(self, until: Micros) -> list[Event]:
        notes = [recorder.note for recorder in self._recorders]
        ended: list[Event] = []
        for number, event in self._advance(until):
            for note in notes:
                note(number, event)
            if isinstance(event, Finished):
                ended.append(event)
        return ended


def _numbered(simulation: "Engine | RankGroup | Cluster") -> Callable[[Micros], list[tuple[int, Event]]]:
    """Return `advance` with the number of its instance before each event."""
    if not isinstance(simulation, Engine):
        return simulation.advance_each
    engine = simulation
    return lambda until: [(0, event) for event in engine.advance(until)]


@contextmanager
def observing(
    options: "SimulationOptions", deployment: "Deployment", simulation: "Engine | RankGroup | Cluster", command: str
) -> "Iterator[Simulation]":
    """Yield the simulation to run in place of `simulation`, and write its folder of metrics and its request graphs.

    Raises OptionError or TraceError for what cannot be written.
    """
    report = options.report
    if not report.needs_events:
        yield simulation
        return
    from replay.metrics_dir.pictures import draw_pictures
    from replay.metrics_dir.recorder import Recorder, RequestGraphs, kv_traffic, run_metadata
    from replay.provenance import title_of

    folder = None
    if report.metrics_dir is not None:
        facts = run_metadata(options, options.cluster, deployment, simulation, command)
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
