"""The times between tokens of all completed requests, counted per step rather than kept per token."""

from array import array
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from engine.core import Engine
from engine.sequence import Sequence
from replay.pool import Pool, counted_pool, merged

STEPS_AT_ONCE = 1 << 18


class TokenGaps:
    """Every inter-token latency of every completed request, by instance."""

    __slots__ = ("_engines", "_of_instance")

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """`engines` may grow."""
        self._engines = engines
        self._of_instance: dict[int, InstanceGaps] = {}

    def add(self, sequence: Sequence) -> None:
        """Count the gaps of a completed request."""
        gaps = self._of_instance.get(sequence.instance)
        if gaps is None:
            gaps = self._of_instance[sequence.instance] = InstanceGaps(self._engines[sequence.instance])
        gaps.add(sequence)

    def pool(self, instance: int | None = None, steps_at_once: int = STEPS_AT_ONCE) -> Pool:
        """All gaps counted so far, or those of one instance."""
        wanted = [gaps for number, gaps in self._of_instance.items() if instance in (None, number)]
        pools = [gaps.pool(steps_at_once) for gaps in wanted]
        if len(pools) == 1:
            return pools[0]
        return merged(pools)


class InstanceGaps:
    """The gaps of one instance.

    Costs 24 bytes per stretch of consecutive tokens, and O(steps log requests) time in the end.
    """

    __slots__ = ("_engine", "_stretches")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stretches = array("q")
        """Of each in which tokens follow each other step by step: the step of the token before, the first, how many."""

    def add(self, sequence: Sequence) -> None:
        """Count the gaps of a completed request."""
        before = sequence.first_token_step
        for first, count in sequence.token_runs:
            self._stretches.extend((before or 0, first, count))
            before = first + count - 1

    def pool(self, steps_at_once: int) -> Pool:
        """All gaps counted so far. Steps are gone through in blocks, as there may be as many as tokens."""
        befores, firsts, counts = np.array(self._stretches, np.int64).reshape(-1, 3).T
        pauses_us = np.array([], np.int64)
        if self._engine.config.scheduling != "blis":
            # A token whose predecessor's is not the step before. BLIS counts its own step, whatever was between them.
            ends_us = self._engine.steps.ends()
            pauses_us = ends_us[firsts] - ends_us[befores]
            firsts, counts = firsts + 1, counts - 1
        stops = np.sort(firsts + counts)
        firsts = np.sort(firsts)
        parts = [np.unique(pauses_us, return_counts=True)]
        for begin in range(0, len(self._engine.steps), steps_at_once):
            steps = np.arange(begin, min(begin + steps_at_once, len(self._engine.steps)))
            # As many stretches are under way as have begun and have not stopped.
            counts = np.searchsorted(firsts, steps, side="right") - np.searchsorted(stops, steps, side="right")
            values_us, which = np.unique(self._gaps_us(begin, len(steps))[counts > 0], return_inverse=True)
            parts.append((values_us, np.bincount(which, counts[counts > 0], len(values_us)).astype(np.int64)))
        values_us, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return counted_pool(values_us, counts)

    def _gaps_us(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The time between the token of a step and the one before it, for `count` steps."""
        starts_us, ends_us = self._engine.steps.span(first, count)
        if self._engine.config.scheduling == "blis":
            return ends_us - starts_us + self._engine.latency.output_token_time
        return np.diff(ends_us, prepend=self._engine.steps.end(first - 1) if first else 0)
