"""A finished run with all that its report is made of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from replay.output.findings import Findings, Questions, examine
from replay.output.metrics import JsonObject
from replay.simulation.simulate import Simulated
from traces import TraceHeader

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance


class Sending(NamedTuple):
    """The way requests were sent, as the files of a run record it."""

    is_decided_here: bool = False
    """Whether the run itself decided when its requests were sent."""
    keeps_schedule: bool = False
    """Whether a trace of the run has scheduled arrivals as well as send times."""


class Outcome(NamedTuple):
    """A finished run: the questions about it, the simulation and its requests, and the header of a trace of it.

    `metrics` replaces the aggregate metrics of the run, and `runs` are those of which `simulated` is the mean, if it is
    one of several. `describe` returns the origin of the results, of which `title` is the first line.
    """

    questions: Questions
    simulated: Simulated
    header: TraceHeader
    title: str
    describe: "Callable[[], Provenance]"
    metrics: JsonObject | None = None
    sending: Sending = Sending()
    runs: tuple[Simulated, ...] = ()

    def findings(self) -> Findings:
        """Return the answers to the questions."""
        found = examine(self.simulated, self.questions)
        return found if self.metrics is None else found._replace(metrics=self.metrics)
