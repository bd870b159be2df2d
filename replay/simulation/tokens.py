"""Tokens of a run, counted per step: times between tokens, and the wait of each token for others of its step.

A token waits until earlier tokens of its step have been handed to their clients. The wait depends on the number of
requests with a token in the step, which is known once all of these requests have been seen.
"""

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import output_waits
from blis_sim.engine.latency.model import output_turn_us
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
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


class OutputSerialization:
    """Waits of tokens for each other, by instance."""

    __slots__ = ("_engines", "_of_instance")

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """`engines` may grow."""
        self._engines = engines
        self._of_instance: dict[int, InstanceSerialization] = {}

    def add(self, place: int, sequence: Sequence) -> None:
        """Note the steps of the request at `place` of the record."""
        turns = self._of_instance.get(sequence.instance)
        if turns is None:
            turns = self._of_instance[sequence.instance] = InstanceSerialization(self._engines[sequence.instance])
        turns.add(place, sequence)

    def delays(self) -> Iterator[tuple[int, Micros, Micros]]:
        """Return indices of the record, and for each the wait of its first and of its last token."""
        for turns in self._of_instance.values():
            yield from zip(*(column.tolist() for column in turns.delays()), strict=True)


class InstanceSerialization:
    """On one instance: the first and last token's step of each request, and in which steps it had a token."""

    __slots__ = ("_counts", "_engine", "_firsts", "_last_steps", "_num_runs", "_numbers", "_places", "_steps")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places = array("q")
        self._steps = array("q")
        """Waits of the first token, by request."""
        self._last_steps = array("q")
        self._firsts = array("q")
        """First step and length of each stretch in which a request had a token in every step."""
        self._counts = array("q")
        self._num_runs = array("q")
        """Number of these stretches, by request."""
        self._numbers = array("q")
        """Running numbers, by request."""

    def add(self, place: int, sequence: Sequence) -> None:
        """Note the steps of the request at `place` of the record."""
        step = sequence.first_token_step
        if step is None:
            return
        runs = [(step, 1), *((first, count) for first, count in sequence.token_runs)]
        for first, count in runs:
            self._firsts.append(first)
            self._counts.append(count)
        self._num_runs.append(len(runs))
        self._places.append(place)
        self._numbers.append(sequence.running_number)
        self._steps.append(step)
        self._last_steps.append(sum(runs[-1]) - 1)

    def delays(self) -> tuple[Ints, Ints, Ints]:
        """Places in the record, and for each how long its first and its last token wait, in microseconds."""
        latency, log = self._engine.latency, self._engine.steps
        changes = np.zeros(len(log) + 1, np.int64)
        firsts, counts = np.array(self._firsts, np.int64), np.array(self._counts, np.int64)
        np.add.at(changes, firsts, 1)
        np.add.at(changes, firsts + counts, -1)
        num_outputs = np.cumsum(changes[:-1])
        waits_us = num_outputs * latency.output_sequence_time
        steps, last_steps = np.array(self._steps, np.int64), np.array(self._last_steps, np.int64)
        first_us, last_us = waits_us[steps], waits_us[last_steps]
        if turn_us := output_turn_us(latency):
            queued_us = output_waits(log.output_instants(), num_outputs, turn_us)
            numbers = np.array(self._numbers, np.int64)
            num_runs = np.array(self._num_runs, np.int64)
            if counts.sum() == (last_steps - steps + 1).sum():
                first_turns, last_turns = turns_in(steps, last_steps, numbers)
            else:
                first_turns, last_turns = turns_with_gaps(
                    steps, last_steps, numbers, firsts, counts, np.repeat(numbers, num_runs)
                )
            first_us = first_us + (queued_us[steps] + first_turns * turn_us).astype(np.int64)
            last_us = last_us + (queued_us[last_steps] + last_turns * turn_us).astype(np.int64)
        return np.array(self._places, np.int64), first_us, last_us


def turns_in(first_steps: Ints, last_steps: Ints, running_numbers: Ints) -> tuple[Ints, Ints]:
    """Return, for each request, when its turn comes among the tokens of its first and of its last step, from 1 on.

    Requests have a token in every step between, and stand in the batch in the order of their running numbers: those of
    before a preemption count as the last ones.
    """
    order = np.argsort(running_numbers, kind="stable")
    firsts, lasts = first_steps[order], last_steps[order]
    num_earlier = np.arange(len(order))
    if (np.diff(firsts) >= 0).all():  # as mostly: whichever came earlier has a token by now
        at_first = num_earlier - np.sort(lasts).searchsorted(firsts)
        at_last = num_earlier - num_below_before(lasts, lasts)
    else:
        at_first = num_below_before(firsts, firsts + 1) - num_below_before(lasts, firsts)
        at_last = num_below_before(firsts, lasts + 1) - num_below_before(lasts, lasts)
    first_turns, last_turns = np.empty_like(num_earlier), np.empty_like(num_earlier)
    first_turns[order], last_turns[order] = at_first + 1, at_last + 1
    return first_turns, last_turns


def turns_with_gaps(
    first_steps: Ints, last_steps: Ints, running_numbers: Ints, run_firsts: Ints, run_counts: Ints, run_numbers: Ints
) -> tuple[Ints, Ints]:
    """Return what `turns_in` returns where requests lack tokens in steps between: with pipeline stages, preemptions.

    The last three arrays have a place for each stretch of steps with a token: its first step, its length and the
    running number of its request. Cost: O(n log n) in the tokens of steps with a first or last token of a request.
    """
    asked = np.unique(np.concatenate((first_steps, last_steps)))
    begins, ends = asked.searchsorted(run_firsts), asked.searchsorted(run_firsts + run_counts)
    lengths = ends - begins
    places = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    lowest = running_numbers.min()
    span = running_numbers.max() - lowest + 1
    keys = np.sort(places * span + np.repeat(run_numbers - lowest, lengths))

    def turns(steps: Ints) -> Ints:
        begin = asked.searchsorted(steps) * span
        found: Ints = keys.searchsorted(begin + running_numbers - lowest) - keys.searchsorted(begin) + 1
        return found

    return turns(first_steps), turns(last_steps)


def num_below_before(values: Ints, limits: Ints) -> Ints:
    """Return for each of `limits`, which are as many, how many of the values before its place are below it.

    Cost: O(n log^2 n).
    """
    size = 1 << max(0, len(values) - 1).bit_length()
    if not len(values):
        return np.zeros(0, np.int64)
    lowest, highest = min(values.min(), limits.min()), max(values.max(), limits.max())
    span = int(highest - lowest) + 2
    sources, queries = np.full(size, span - 1, np.int64), np.zeros(size, np.int64)
    sources[: len(values)], queries[: len(values)] = values - lowest, limits - lowest
    counts = np.zeros(size, np.int64)
    width = 1
    while width < size:
        left, right = sources.reshape(-1, 2, width)[:, 0], queries.reshape(-1, 2, width)[:, 1]
        rows = np.arange(len(left))[:, None]
        below = (np.sort(left, axis=1) + rows * span).ravel().searchsorted((right + rows * span).ravel())
        counts.reshape(-1, 2, width)[:, 1] += below.reshape(-1, width) - rows * width
        width *= 2
    return counts[: len(values)]
