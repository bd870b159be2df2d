"""The times between tokens of all completed requests, counted per step rather than kept per token."""

from array import array

import numpy as np

from engine.core import Engine
from engine.sequence import Sequence
from replay.pool import Pool, counted_pool


class TokenGaps:
    """Every inter-token latency of every completed request.

    Costs O(1) per stretch of consecutive tokens, and O(steps log steps) in the end, whatever the number of tokens.
    """

    __slots__ = ("_counts", "_engine", "_firsts", "_pauses_us")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._firsts = array("q")
        """First step of each stretch in which tokens follow each other step by step."""
        self._counts = array("q")
        """How many tokens of it have the step before as their predecessor's."""
        self._pauses_us = array("q")
        """Longer gaps between two stretches, where they count as such."""

    def add(self, sequence: Sequence) -> None:
        """Count the gaps of a completed request."""
        if self._engine.config.scheduling == "blis":
            # A token's gap is its own step, whatever happened between the steps.
            for first, count in sequence.token_runs:
                self._firsts.append(first)
                self._counts.append(count)
            return
        end = self._engine.steps.end
        before = sequence.first_token_step
        assert before is not None
        for first, count in sequence.token_runs:
            self._pauses_us.append(end(first) - end(before))
            self._firsts.append(first + 1)
            self._counts.append(count - 1)
            before = first + count - 1

    def pool(self) -> Pool:
        """All gaps counted so far."""
        engine = self._engine
        num_steps = len(engine.steps)
        firsts = np.array(self._firsts, np.int64)
        starting = np.bincount(firsts, minlength=num_steps + 1)
        ending = np.bincount(firsts + np.array(self._counts, np.int64), minlength=num_steps + 1)
        counts = np.cumsum(starting - ending)[:num_steps]
        if engine.config.scheduling == "blis":
            gaps_us = engine.steps.durations() + engine.latency.output_token_time
        else:
            gaps_us = np.diff(engine.steps.ends(), prepend=0)
        pauses_us = np.array(self._pauses_us, np.int64)
        occurring = counts > 0
        return counted_pool(
            np.concatenate([gaps_us[occurring], pauses_us]),
            np.concatenate([counts[occurring], np.ones(len(pauses_us), np.int64)]),
        )
