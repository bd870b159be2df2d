"""Admission policies that look at the request alone."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.cluster.state import RoutingState
from engine.request import Request
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Stateless:
    """A policy that is a function."""

    decide: Callable[[Request, RoutingState], bool]
    reads_snapshots: bool = False

    def admits(self, request: Request, state: RoutingState) -> bool:
        return self.decide(request, state)

    def routed(self, sequence: Sequence) -> None:
        pass


def always_admit(_request: Request, _state: RoutingState) -> bool:
    """Everybody."""
    return True


def reject_all(_request: Request, _state: RoutingState) -> bool:
    """Nobody: to test what is made of it."""
    return False
