"""Latency targets of a plan, and the judgement of one simulation by them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from blis_sim.bench.runner.simulate import Outcome

SERVED = "served"
"""The figure that is missed when requests were left unserved."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of a simulation by the targets.

    `loads` has, for each target, the figure as a share of its limit; above 1 the target is missed. `worst` names the
    figure with the largest share, or `SERVED` when requests were rejected, timed out or never completed.
    """

    loads: Mapping[str, float]
    worst: str

    @property
    def load(self) -> float:
        """The share of the worst figure; infinite when requests were left unserved."""
        return inf if self.worst == SERVED else self.loads[self.worst]

    @property
    def is_met(self) -> bool:
        """Whether every target is met."""
        return self.load <= 1

    @property
    def headroom(self) -> float:
        """The share of the limit that the worst figure leaves free, negative where the limit is exceeded."""
        return 1 - self.load


@dataclass(frozen=True, slots=True)
class Targets:
    """Limits in milliseconds by the figure of a row, such as `ttft_p99_ms`. At least one."""

    limits_ms: Mapping[str, float]

    def judge(self, outcome: Outcome) -> Judgement:
        """Compare the figures of a simulation with the limits."""
        figures = outcome.figures
        if outcome.error or not figures.get("completed_requests"):
            return Judgement({}, SERVED)
        loads = {name: (figures[name] or 0.0) / limit_ms for name, limit_ms in self.limits_ms.items()}
        is_complete = figures["completed_requests"] == figures["injected_requests"]
        if not is_complete or figures["rejected_requests"] or figures["timed_out_requests"]:
            return Judgement(loads, SERVED)
        return Judgement(loads, max(loads, key=loads.__getitem__))

    def tightened(self, factor: float) -> "Targets":
        """Return the targets with each limit divided by `factor`."""
        return Targets({name: limit_ms / factor for name, limit_ms in self.limits_ms.items()})
