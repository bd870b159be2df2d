"""The `scenario` section of a workload spec: one of the scenarios of the published adaptive scheduler."""

from dataclasses import dataclass
from typing import Annotated

from blis_sim.options.limits import LEAST_RATE, MOST_RATE
from traces.workload.bounds import Bounds

SCENARIO_NAMES = ("steady", "burst", "mixed-priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario at a rate in requests per second, for some seconds."""

    name: Annotated[str, Bounds(choices=SCENARIO_NAMES)]
    rate: Annotated[float, Bounds(at_least=LEAST_RATE, at_most=MOST_RATE)] = 30.0
    duration_s: Annotated[float, Bounds(above=0, at_most=1_000_000)] = 20.0
