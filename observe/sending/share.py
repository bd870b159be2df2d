"""What a run and the processes that send for it tell each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from observe.clock import Clock, Nanos
from observe.figures.stats import RunStats
from observe.options import ObserveOptions
from observe.plans.workload import Workload
from observe.requests.body import RequestStyle
from observe.requests.prompts import TokenScale
from observe.requests.schedule import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a schedule that one process sends, and all it must know for that. Requests keep their numbers."""

    options: ObserveOptions
    style: RequestStyle
    scale: TokenScale
    clock: Clock
    plan: Sequence[Planned]
    request_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Ready:
    """From a process: connections are open and requests are built."""


@dataclass(frozen=True, slots=True)
class Begin:
    """From the run: the instant from which the schedule counts, on the counter that all processes read."""

    origin: Nanos


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """All that a process has to say at its end. `problem` says why it has not begun."""

    stats: RunStats | None = None
    num_not_sent: int = 0
    failure: str = ""
    rescued: str = ""
    problem: str = ""


def shares_of(workload: Workload, clock: Clock, num_shares: int) -> list[Share]:
    """The requests dealt out in turn, so that each share has the shape of the whole; none is empty."""
    plan, request_ids = workload.agenda.plan, workload.agenda.request_ids
    num_shares = min(num_shares, len(plan))
    return [
        Share(
            options=workload.options,
            style=workload.style,
            scale=workload.prompts.scale,
            clock=clock,
            plan=plan[start::num_shares],
            request_ids=request_ids[start::num_shares],
        )
        for start in range(num_shares)
    ]
