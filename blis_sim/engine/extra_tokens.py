"""Tokens that a step brings a sequence beyond one: with speculative decoding there may be several."""

from bisect import bisect_right


class ExtraTokens:
    """How many more tokens than one each step produced, for the steps that produced more. Asking is O(log steps)."""

    __slots__ = ("_steps", "_totals")

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._totals = [0]
        """Extra tokens before each of the steps, and after the last one."""

    @property
    def total(self) -> int:
        return self._totals[-1]

    def add(self, step_index: int, count: int) -> None:
        """Step `step_index`, later than those before, produced `count` tokens beyond one."""
        self._steps.append(step_index)
        self._totals.append(self._totals[-1] + count)

    def until(self, step_index: int) -> int:
        """Extra tokens up to the end of step `step_index`."""
        return self._totals[bisect_right(self._steps, step_index)]
