"""Counters of a cluster, beside those of its instances."""

from dataclasses import dataclass, field

NOBODY_ANSWERS = "no instance takes requests"
NOBODY_PREFILLS = "no instance computes prompts"
"""Why requests are rejected at routing, in words for their clients."""

MOST_CLASSES = 1000
OTHER_CLASSES = "other"
"""Name under which rejections are counted once there are so many classes."""


@dataclass(slots=True)
class ClusterCounters:
    """What became of requests that did not end on an instance. The cluster alone writes it."""

    num_ended: int = 0
    """All of them: those below, those whose clients hung up, and those of whom a gateway or a transfer knows more."""
    num_rejected_at_admission: int = 0
    rejected_by_class: dict[str, int] = field(default_factory=dict)
    """Those, by SLO class; requests without a class count as standard."""
    num_rejected_at_routing: int = 0
    """For want of an instance that takes requests."""

    def count_rejection_at_admission(self, slo_class: str) -> None:
        """Count a request that admission turned away. Clients choose the names of classes, so few are kept."""
        self.num_rejected_at_admission += 1
        name = slo_class or "standard"
        if name not in self.rejected_by_class and len(self.rejected_by_class) >= MOST_CLASSES:
            name = OTHER_CLASSES
        self.rejected_by_class[name] = self.rejected_by_class.get(name, 0) + 1
