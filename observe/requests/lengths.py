"""How long prompts and outputs are: a number of tokens, or a bell curve around it."""

from dataclasses import dataclass
from random import Random

from observe.errors import ObserveError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A normal distribution of whole token counts, clamped to its bounds. No upper bound when `most` is None.

    `label` is the flag of the mean, for errors. Raises ObserveError when the mean is out of bounds.
    """

    label: str
    mean: int
    stdev: float = 0.0
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.most < self.least:
            raise ObserveError(f"{self.label}-max must be at least {self.label}-min ({self.least}), got {self.most}")
        if self.mean < self.least:
            raise ObserveError(f"{self.label} must be at least {self.label}-min ({self.least}), got {self.mean}")
        if self.most is not None and self.mean > self.most:
            raise ObserveError(f"{self.label} must be at most {self.label}-max ({self.most}), got {self.mean}")

    def draw(self, random: Random) -> int:
        """One length."""
        if not self.stdev:
            return self.mean
        length = max(self.least, round(random.gauss(self.mean, self.stdev)))
        return length if self.most is None else min(length, self.most)
