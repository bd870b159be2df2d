"""What an autoscaler knows of the instances, and what it wants to be changed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """One instance that serves requests. Tokens are those of its KV cache."""

    instance: int
    variant: str
    """What it runs on: instances of one variant are alike."""
    capacity_tokens: int
    tokens_in_use: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """All instances that run on one kind of hardware."""

    name: str
    capacity_tokens: int
    """Of one instance."""
    cost_per_hour: float
    num_pending: int = 0
    """Instances that are being loaded."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is collected at one tick."""

    replicas: Sequence[ReplicaFigures]
    variants: Sequence[VariantFigures]

    def num_replicas(self, variant: str) -> int:
        """Instances of a variant that serve requests."""
        return sum(replica.variant == variant for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Need:
    """Tokens of capacity, as far as it is meant to be used, that are missing or could be spared. At most one is set."""

    missing_tokens: float = 0.0
    spare_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """So many more instances of one variant, or fewer if below 0."""

    variant: str
    num_instances: int
