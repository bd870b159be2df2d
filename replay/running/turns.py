"""How long tokens wait until the others of their step have been handed to their clients.

That depends on how many requests a step produced tokens for, which is known once all of them have been seen.
"""

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

Ints = npt.NDArray[np.int64]


class OutputTurns:
    """Waits of tokens for each other, by instance."""

    __slots__ = ("_engines", "_of_instance")

    def __init__(self, engines: SequenceOf[Engine]) -> None:
        """`engines` may grow."""
        self._engines = engines
        self._of_instance: dict[int, InstanceTurns] = {}

    def add(self, place: int, sequence: Sequence) -> None:
        """Note the steps of the request at `place` of the record."""
        turns = self._of_instance.get(sequence.instance)
        if turns is None:
            turns = self._of_instance[sequence.instance] = InstanceTurns(self._engines[sequence.instance])
        turns.add(place, sequence)

    def delays(self) -> Iterator[tuple[int, Micros, Micros]]:
        """Places in the record, and for each how long its first and its last token wait."""
        for turns in self._of_instance.values():
            yield from zip(*(column.tolist() for column in turns.delays()), strict=True)


class InstanceTurns:
    """On one instance: the first and last token's step of each request, and in which steps it had a token."""

    __slots__ = ("_counts", "_engine", "_firsts", "_last_steps", "_places", "_steps")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places = array("q")
        self._steps = array("q")
        """Waits of the first token, by request."""
        self._last_steps = array("q")
        self._firsts = array("q")
        """First step and length of each stretch in which a request had a token in every step."""
        self._counts = array("q")

    def add(self, place: int, sequence: Sequence) -> None:
        """Note the steps of the request at `place` of the record."""
        step = sequence.first_token_step
        if step is None:
            return
        runs = [(step, 1), *((first, count) for first, count in sequence.token_runs)]
        for first, count in runs:
            self._firsts.append(first)
            self._counts.append(count)
        self._places.append(place)
        self._steps.append(step)
        self._last_steps.append(sum(runs[-1]) - 1)

    def delays(self) -> tuple[Ints, Ints, Ints]:
        """Places in the record, and for each how long its first and its last token wait, in microseconds."""
        changes = np.zeros(len(self._engine.steps) + 1, np.int64)
        firsts, counts = np.array(self._firsts, np.int64), np.array(self._counts, np.int64)
        np.add.at(changes, firsts, 1)
        np.add.at(changes, firsts + counts, -1)
        waits_us = np.cumsum(changes[:-1]) * self._engine.latency.output_sequence_time
        steps, last_steps = np.array(self._steps, np.int64), np.array(self._last_steps, np.int64)
        return np.array(self._places, np.int64), waits_us[steps], waits_us[last_steps]
