"""The figures of batches beyond what tables hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable


@runtime_checkable
class HasTables(Protocol):
    """A latency model of tables, which counts how far beyond them batches were."""

    extrapolation: ClassVar[str]
    """How times go on beyond the tables."""

    def exceeded(self) -> list[str]:
        """Return a line for each figure that was beyond what the tables hold."""
        ...

    def reset_maxima(self) -> None:
        """Forget how large the batches were, once the model has been probed."""
        ...


@dataclass(slots=True)
class BatchMaxima:
    """The largest figures of batches, by what they count."""

    most: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, figure: int) -> None:
        """Count one batch."""
        if figure > self.most.get(name, 0):
            self.most[name] = figure

    def exceeding(self, held: Mapping[str, float]) -> list[str]:
        """Return a line for each figure above what is held."""
        return [
            f"up to {self.most[name]:,} {name}, the tables have up to {most:,}"
            for name, most in held.items()
            if self.most.get(name, 0) > most
        ]
