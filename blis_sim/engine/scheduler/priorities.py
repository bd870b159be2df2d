"""The urgency of a request: the smaller the number, the more urgent. A new policy is one function and one row of
`PRIORITIES`.

BLIS's published description scores a request `base + age_weight * (clock - arrival)` with `slo-based`, the same with a
minus with `inverted-slo`, and larger scores come first. All requests age alike: the scores of two of them differ by
`age_weight * (arrival of one - arrival of the other)` at every instant, so their order is known when they arrive.
"""

from collections.abc import Callable
from typing import TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.slo_classes import DEFAULT_SLO_PRIORITY, SloPriorities
from blis_sim.engine.units import Micros

PriorityPolicy: TypeAlias = Callable[[Request, Micros], int]
"""A function from a request and its arrival to its priority."""


def by_slo_class(priorities: SloPriorities) -> PriorityPolicy:
    """The request's own priority, or else that of its SLO class."""
    urgency = {name: priorities.urgency(name) for name in priorities.by_class}
    standard = priorities.highest - DEFAULT_SLO_PRIORITY

    def priority(request: Request, _arrived_at: Micros) -> int:
        return urgency.get(request.slo_class, standard) if request.priority is None else request.priority

    return priority


def constant(_request: Request, _arrived_at: Micros) -> int:
    """Return 0 for every request."""
    return 0


def oldest_first(_request: Request, arrived_at: Micros) -> int:
    """Return a score that grows with age, so that no request starves."""
    return arrived_at


def youngest_first(_request: Request, arrived_at: Micros) -> int:
    """The score falls with age: starves waiting requests, to test how others cope."""
    return -arrived_at


PRIORITIES: dict[str, Callable[[SloPriorities], PriorityPolicy]] = {
    "slo-class": by_slo_class,
    "constant": lambda _: constant,
    "slo-based": lambda _: oldest_first,
    "inverted-slo": lambda _: youngest_first,
    "slo-urgency": by_slo_class,  # and `Urgency` raises it while it waits
}
"""Policy name to priority, given when a request is queued."""
