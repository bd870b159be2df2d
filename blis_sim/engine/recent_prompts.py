"""How much prompt a GPU has just computed: it heats up, and computes the next one more slowly."""

from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.units import Micros

HALF_LIFE_US = 20_000
"""Prompt tokens count half as much after this. Measured on an H100: a prompt of 1,000 tokens takes 3.5 ms longer right
after another one, 1.6 ms longer 23 ms after it."""


@dataclass(slots=True)
class RecentPrompts:
    """Prompt tokens of the steps so far, each counting less the longer ago its step ended."""

    _tokens: float = 0.0
    _at: Micros = 0

    def told(self, shape: BatchShape, at: Micros) -> BatchShape:
        """`shape`, of a step with prompts that starts at `at`, with what is recent then."""
        recent = self.tokens_at(at)
        return BatchShape._make((*shape[:8], recent)) if recent else shape

    def tokens_at(self, at: Micros) -> int:
        """What counts as recent at `at`."""
        return int(self._tokens * 0.5 ** ((at - self._at) / HALF_LIFE_US))

    def add(self, tokens: int, ends_at: Micros) -> None:
        """A step with so many prompt tokens ends."""
        self._tokens = self._tokens * 0.5 ** ((ends_at - self._at) / HALF_LIFE_US) + tokens
        self._at = ends_at
