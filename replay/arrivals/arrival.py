"""A request on its way to an engine."""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from traces import TraceRow

if TYPE_CHECKING:
    from traces.workload import WorkloadRequest  # a replay does not wait for the generators to be loaded

Origin: TypeAlias = Union[TraceRow, "WorkloadRequest"]
"""What a request is made from. Both kinds say under the same names whose it is."""


class Arrival(NamedTuple):
    """A request that arrives: when, what the engine is told of it, and what it was made from."""

    at: Micros
    request: Request
    row: Origin
