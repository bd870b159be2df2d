"""Sums of the times of decode steps, kept: what many steps in a row take is then a difference of two of them."""

from array import array
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.units import MAX_MICROS, Micros

MAX_SEQUENCES = 32
"""With more of them hardly any sum would be used twice."""
STEPS_PER_RUN = 256
MAX_RUNS = 1024
"""Known at once, of 2 kB each."""
MIN_LOOKUPS = 3
"""Number of times that a run is requested before its sums are made."""
LONGEST_STEP_US: Micros = MAX_MICROS // (2 * STEPS_PER_RUN)

DecodeTimes: TypeAlias = "Callable[[BatchShape, int], npt.NDArray[np.int64]]"
"""The method `decode_times` of a latency model."""

Run: TypeAlias = "array[int]"
"""Steps in a row in which a number of sequences decodes. Times are microseconds from the start of the first to the
start of each, and to the end of the last."""


class DecodeSums:
    """Runs of a latency model's steps, as far as they have been requested.

    A step leads from a context to one with a token more for each sequence. All contexts with the same remainder
    therefore lie on one line of steps. The line is cut into runs.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[tuple[int, int], Run | int] = {}
        """By how many sequences and the context of the first step; or how often one has been requested."""

    def find(self, decode_times: DecodeTimes, num_sequences: int, context: int) -> "tuple[Run | None, int]":
        """The run that the step is part of in which so many sequences with so many context tokens decode; and where.

        None where it does not pay, or where steps are so long that sums might get too large. `decode_times` is that of
        one latency model.
        """
        if not 0 < num_sequences <= MAX_SEQUENCES:
            return None, 0
        step = context // num_sequences % STEPS_PER_RUN
        key = num_sequences, context - step * num_sequences
        found = self._runs.get(key, 0)
        if not isinstance(found, int):
            return found, step
        run = _run_from(decode_times, *key) if found == MIN_LOOKUPS else None
        if len(self._runs) >= MAX_RUNS:
            self._runs.clear()
        self._runs[key] = found % MIN_LOOKUPS + 1 if run is None else run
        return run, step


def _run_from(decode_times: DecodeTimes, num_sequences: int, context: int) -> "Run | None":
    times = decode_times(decodes(num_sequences, context), STEPS_PER_RUN)
    if int(times.max()) > LONGEST_STEP_US:
        return None
    sums = array("q", bytes(8 * (STEPS_PER_RUN + 1)))
    times.cumsum(out=np.frombuffer(sums, np.int64)[1:])
    return sums
