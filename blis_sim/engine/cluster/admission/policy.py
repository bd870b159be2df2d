"""The seam between a cluster and its admission policy."""

from collections.abc import Callable
from typing import Protocol

from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence


class AdmissionPolicy(Protocol):
    """One way to say who may come in. A policy that keeps anything in mind is an object of its own for each cluster."""

    @property
    def reads_snapshots(self) -> bool:
        """Whether what instances report matters. If not, they need not be asked."""
        ...

    def admits(self, request: Request, state: RoutingState) -> bool:
        """Whether `request` may come in at `state.now`. It is asked once for each."""
        ...

    @property
    def routed(self) -> Callable[[Sequence], None] | None:
        """Told of each request that was admitted when it comes to an instance; its `outcome` will tell when it ends.

        None when that does not matter.
        """
        ...
