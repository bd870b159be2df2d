"""The importance of SLO classes, by which requests are served, admitted or kept."""

from collections.abc import Mapping
from dataclasses import dataclass

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

    @property
    def highest(self) -> int:
        """The importance of the most important class."""
        return max(DEFAULT_SLO_PRIORITY, *self.by_class.values())

    def urgency(self, slo_class: str) -> int:
        """The priority of a class in vLLM's sense: 0 for the most important one, more for the others."""
        return self.highest - self.importance(slo_class)

    def is_sheddable(self, slo_class: str) -> bool:
        """Whether requests of the class may be turned away for the sake of others."""
        return self.importance(slo_class) < 0


DEFAULT_SLO_PRIORITIES = SloPriorities(SLO_CLASS_PRIORITIES)
