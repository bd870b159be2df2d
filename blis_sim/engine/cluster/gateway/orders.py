"""Who leaves the gateway's queue first. A new order is a function, if need be, and one row of `DISPATCH_ORDERS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.cluster.gateway.waiting import Waiting

Rank: TypeAlias = tuple[int, int]
"""Smaller goes first. No two requests have the same."""


@dataclass(frozen=True, slots=True)
class DispatchOrder:
    """Smaller ranks first, among all requests or only among those of equal importance."""

    rank: Callable[[Waiting], Rank]
    by_importance: bool = True
    """Whether the more important go first, whatever their ranks."""


def first_come(waiting: Waiting) -> Rank:
    """First come, first served."""
    return (waiting.number, 0)


def earliest_deadline(waiting: Waiting) -> Rank:
    """Whose SLO target runs out first; those without one come last, in their order."""
    return (waiting.due_at, waiting.number)


DISPATCH_ORDERS: dict[str, DispatchOrder] = {
    "fifo": DispatchOrder(first_come),
    "priority": DispatchOrder(first_come),
    "slo-deadline": DispatchOrder(earliest_deadline),
    "global-fifo": DispatchOrder(first_come, by_importance=False),
}
"""Name to order. BLIS's `fifo` goes by importance, too: only `global-fifo` does not."""
