"""The seam between a cluster and its router."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.cluster.ties import Ties
from blis_sim.engine.request import Request


class Choice(NamedTuple):
    """Which of the candidates takes a request."""

    place: int
    """Among the candidates."""
    scores: Sequence[float] | None = None
    """Of all candidates, if the router compared any; the larger the better."""


class Router(Protocol):
    """One way to choose. A router that keeps anything in mind is an object of its own for each cluster."""

    @property
    def reads_snapshots(self) -> bool:
        """Whether what instances report matters. If not, they need not be asked."""
        ...

    @property
    def reads_in_flight(self) -> bool:
        """Whether what is in flight matters. If not, instances need only be asked when they report."""
        ...

    @property
    def reads_caches(self) -> bool:
        """Whether what KV caches hold matters, likewise."""
        ...

    @property
    def reads_adapters(self) -> bool:
        """Whether it matters which LoRA adapters instances use, likewise."""
        ...

    def choose(self, request: Request, state: RoutingState) -> Choice:
        """One of `state.candidates`, of which there is at least one. It will be sent there."""
        ...


def one_of_the_best(scores: Sequence[float], ties: Ties) -> int:
    """The place of the largest score; who it is among equals is drawn."""
    best = max(scores)
    places = [place for place, score in enumerate(scores) if score == best]
    return places[0] if len(places) == 1 else places[ties(len(places))]
