"""The seam between a cluster and its admission policy."""

from typing import Protocol

from engine.cluster.state import RoutingState
from engine.request import Request
from engine.sequence import Sequence


class AdmissionPolicy(Protocol):
    """One way to say who may come in. A policy that keeps anything in mind is an object of its own for each cluster."""

    @property
    def reads_snapshots(self) -> bool:
        """Whether what instances report matters. If not, they need not be asked."""
        ...

    def admits(self, request: Request, state: RoutingState) -> bool:
        """Whether `request` may come in at `state.now`. It is asked once for each."""
        ...

    def routed(self, sequence: Sequence) -> None:
        """A request that was admitted has been sent to an instance; its `outcome` will tell when it ends."""
        ...
