"""How urgent a request is: the smaller the number, the more. A new policy is one function and one row of `PRIORITIES`.

BLIS's published description scores a request `base + age_weight * (clock - arrival)` with `slo-based`, the same with a
minus with `inverted-slo`, and larger scores come first. All requests age alike: the scores of two of them differ by
`age_weight * (arrival of one - arrival of the other)` at every instant, so their order is known when they arrive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.request import Request
from engine.units import Micros

PriorityPolicy: TypeAlias = Callable[[Request, Micros], int]
"""From a request and its arrival to its priority."""

SLO_CLASS_PRIORITIES: dict[str, int] = {"critical": 4, "standard": 3, "batch": -1, "sheddable": -2, "background": -3}
"""BLIS's importance of each SLO class (sim/slo_priority.go), larger is more important."""

DEFAULT_SLO_PRIORITY = 3


@dataclass(frozen=True, slots=True)
class SloPriorities:
    """The importance of each SLO class; classes not named have `DEFAULT_SLO_PRIORITY`."""

    by_class: Mapping[str, int]

    def importance(self, slo_class: str) -> int:
        """The larger the more important."""
        return self.by_class.get(slo_class, DEFAULT_SLO_PRIORITY)

    def is_sheddable(self, slo_class: str) -> bool:
        """Whether requests of the class may be turned away for the sake of others."""
        return self.importance(slo_class) < 0


DEFAULT_SLO_PRIORITIES = SloPriorities(SLO_CLASS_PRIORITIES)
_HIGHEST = max(SLO_CLASS_PRIORITIES.values())


def urgency(slo_class: str) -> int:
    """The priority of a class in vLLM's sense: 0 for the most important one, more for the others."""
    return _HIGHEST - SLO_CLASS_PRIORITIES.get(slo_class, DEFAULT_SLO_PRIORITY)


def by_slo_class(request: Request, _arrived_at: Micros) -> int:
    """The request's own priority, or else that of its SLO class."""
    return urgency(request.slo_class) if request.priority is None else request.priority


def constant(_request: Request, _arrived_at: Micros) -> int:
    """The same for all."""
    return 0


def oldest_first(_request: Request, arrived_at: Micros) -> int:
    """The score grows with age, which keeps everybody from starving."""
    return arrived_at


def youngest_first(_request: Request, arrived_at: Micros) -> int:
    """The score falls with age: starves whoever waits, to test how others cope."""
    return -arrived_at


PRIORITIES: dict[str, PriorityPolicy] = {
    "slo-class": by_slo_class,
    "constant": constant,
    "slo-based": oldest_first,
    "inverted-slo": youngest_first,
}
"""Policy name to priority, given once, when a request is queued."""
