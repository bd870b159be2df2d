"""A finished run with all that its report is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from replay.output.findings import Findings, Questions, examine
from replay.output.metrics import JsonObject
from replay.running.simulate import Simulated
from traces import TraceHeader

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Sending:
    """The way requests were sent, as the files of a run record it."""

    is_decided_here: bool = False
    """Whether the run itself decided when its requests were sent."""
    keeps_schedule: bool = False
    """Whether a trace of the run has scheduled arrivals as well as send times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run: the questions about it, the simulation and its requests, and the header of a trace of it.

    `metrics` replaces the aggregate metrics of the run, and `runs` are those of which `simulated` is the mean, if it is
    one of several. `describe` returns the origin of the results.
    """

    questions: Questions
    simulated: Simulated
    header: TraceHeader
    describe: "Callable[[], Provenance]"
    metrics: JsonObject | None = None
    sending: Sending = field(default_factory=Sending)
    runs: tuple[Simulated, ...] = ()

    def findings(self) -> Findings:
        """Return the answers to the questions."""
        found = examine(self.simulated, self.questions)
        return found if self.metrics is None else replace(found, metrics=self.metrics)
