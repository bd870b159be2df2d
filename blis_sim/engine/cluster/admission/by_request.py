"""Admission policies that look at the request alone."""

from collections.abc import Callable
from dataclasses import dataclass

from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


@dataclass(frozen=True, slots=True)
class Stateless:
    """A policy that is a function."""

    admits: Callable[[Request, RoutingState], bool]
    reads_snapshots: bool = False
    routed: None = None


def always_admit(_request: Request, _state: RoutingState) -> bool:
    """Everybody."""
    return True


def reject_all(_request: Request, _state: RoutingState) -> bool:
    """Nobody: to test what is made of it."""
    return False
