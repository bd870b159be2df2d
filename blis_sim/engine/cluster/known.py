"""The requests that a cluster knows by their ids."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Sequence
from blis_sim.engine.units import Micros

LEAST_KNOWN = 1024
"""Nobody looks for ended requests among fewer."""


class Known(dict[str, Sequence]):
    """Requests that have not ended, by id, and some that have."""

    def __init__(self) -> None:
        super().__init__()
        self._most = LEAST_KNOWN

    def new(self, request: Request, at: Micros) -> Sequence:
        """A request that arrives at `at`, and is on no instance yet. Raises ValueError for an id still in use."""
        known = self.get(request.id)
        if known is not None and known.outcome is None:
            raise ValueError(f"request {request.id!r} is still in the cluster")
        sequence = self[request.id] = Sequence(request, at, NOWHERE)
        return sequence

    def new_ones(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Requests that arrive at these instants, likewise."""
        ids = [request.id for request in requests]
        if not self.keys().isdisjoint(ids) or len(set(ids)) < len(ids):
            return list(map(self.new, requests, instants))
        sequences = [Sequence(request, at, NOWHERE) for request, at in zip(requests, instants, strict=True)]
        self.update(zip(ids, sequences, strict=True))
        return sequences

    def forget_ended(self) -> None:
        """Cost: O(requests that have not ended), seldom enough that it is nothing per request."""
        if len(self) <= self._most:
            return
        left = [(request_id, each) for request_id, each in self.items() if each.outcome is None]
        self.clear()
        self.update(left)
        self._most = max(LEAST_KNOWN, 2 * len(left))
