"""The times between tokens of all completed requests, counted per step rather than kept per token."""

from array import array
from collections.abc import Sequence as SequenceOf
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import Sequence
from replay.simulation.pool import Pool, counted_pool, merged

Ints = npt.NDArray[np.int64]

STEPS_AT_ONCE = 1 << 18


class TokenGaps:
    """Every inter-token latency of every completed request, by instance.

    Costs 12 bytes per request and 8 per stretch of consecutive tokens, and O(steps log requests) time in the end; steps
    are counted in 32 bits, for more would not fit into the log of steps.
    """

    __slots__ = ("_engines", "_instances", "_num_runs", "_pools", "_runs", "_starts")

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """`engines` may grow."""
        self._engines = engines
        self._instances = array("i")
        """One entry per request."""
        self._starts = array("I")
        """The step of its first token."""
        self._num_runs = array("I")
        """How many stretches it has in which tokens follow each other step by step."""
        self._runs = array("I")
        """The first step and the length of all stretches, one after the other."""
        self._pools: dict[tuple[int, int], Pool] = {}
        """Stretches since gaps were last counted, by instance and number of steps at a time."""

    def add(self, sequences: SequenceOf[Sequence]) -> None:
        """Count the gaps of completed requests."""
        self._pools.clear()
        runs = [sequence.token_runs for sequence in sequences]
        self._instances.fromlist([sequence.instance for sequence in sequences])
        self._starts.fromlist([sequence.first_token_step or 0 for sequence in sequences])
        self._num_runs.fromlist(list(map(len, runs)))
        self._runs.fromlist(list(chain.from_iterable(chain.from_iterable(runs))))

    def pool(self, instance: int | None = None, steps_at_once: int = STEPS_AT_ONCE) -> Pool:
        """All gaps counted so far, or those of one instance."""
        instances = np.array(self._instances)
        numbers = _distinct(instances) if instance is None else [instance]
        pools = [self._pool(number, instances, steps_at_once) for number in numbers]
        if len(pools) == 1:
            return pools[0]
        return merged(pools)

    def _pool(self, instance: int, instances: Ints, steps_at_once: int) -> Pool:
        pool = self._pools.get((instance, steps_at_once))
        if pool is None:
            pool = self._gaps(instance, instances == instance).pool(steps_at_once)
            self._pools[instance, steps_at_once] = pool
        return pool

    def _gaps(self, instance: int, is_its: npt.NDArray[np.bool_]) -> "InstanceGaps":
        num_runs = np.array(self._num_runs, np.int64)
        firsts, counts = np.array(self._runs, np.int64).reshape(-1, 2)[np.repeat(is_its, num_runs)].T
        befores = np.roll(firsts + counts, 1) - 1
        num_its = num_runs[is_its]
        places = np.cumsum(num_its) - num_its  # of the first stretch of each, which follows the first token
        befores[places[num_its > 0]] = np.array(self._starts, np.int64)[is_its][num_its > 0]
        return InstanceGaps(self._engines[instance], befores, firsts, counts)


def _distinct(instances: npt.NDArray[np.int32]) -> list[int]:
    """Return the distinct instances in order. Without counts np.unique loads all of np.ma, which takes 20 ms."""
    found: list[int] = np.flatnonzero(np.bincount(instances)).tolist()
    return found


class InstanceGaps(NamedTuple):
    """The gaps of one instance: of each stretch of tokens the step of the token before, the first step and how many."""

    engine: Engine
    befores: Ints
    firsts: Ints
    counts: Ints

    def pool(self, steps_at_once: int) -> Pool:
        """All gaps counted so far. Steps are gone through in blocks, as there may be as many as tokens."""
        befores, firsts, counts = self.befores, self.firsts, self.counts
        pauses_us = np.array([], np.int64)
        if self.engine.config.engine != "blis":
            # A token whose predecessor came before the previous step. BLIS counts its own step only.
            ends_us = self.engine.steps.ends()
            pauses_us = ends_us[firsts] - ends_us[befores]
            firsts, counts = firsts + 1, counts - 1
        stops = np.sort(firsts + counts)
        firsts = np.sort(firsts)
        parts = [np.unique(pauses_us, return_counts=True)]
        for begin in range(0, len(self.engine.steps), steps_at_once):
            steps = np.arange(begin, min(begin + steps_at_once, len(self.engine.steps)))
            # As many stretches are under way as have begun and have not stopped.
            counts = np.searchsorted(firsts, steps, side="right") - np.searchsorted(stops, steps, side="right")
            values_us, which = np.unique(self._gaps_us(begin, len(steps))[counts > 0], return_inverse=True)
            parts.append((values_us, np.bincount(which, counts[counts > 0], len(values_us)).astype(np.int64)))
        values_us, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return counted_pool(values_us, counts)

    def _gaps_us(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The time between the token of a step and the one before it, for `count` steps."""
        starts_us, ends_us = self.engine.steps.span(first, count)
        if self.engine.config.engine == "blis":
            return ends_us - starts_us + self.engine.latency.output_token_time
        return np.diff(ends_us, prepend=self.engine.steps.end(first - 1) if first else 0)
