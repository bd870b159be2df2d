"""The event queue: one heap, and the one place that says what comes first when instants are equal."""

import heapq
import itertools
from enum import IntEnum
from typing import TypeAlias

from engine.sequence import Sequence
from engine.units import Micros

Payload: TypeAlias = object
"""The sequence concerned, what a stepping wants back at the end of a step, or the id of a hung-up request."""


class Due(IntEnum):
    """What an entry of the queue is. Its value orders entries of the same instant, smaller first.

    The order of arrival, queueing, step, departure and deadline is BLIS's (sim/event.go): all requests that arrive at
    an instant are seen by a step of that instant, and a completion beats a deadline. A step's report comes before
    everything else of its end; a hang-up is seen by the step of its instant.
    """

    STEP_END = -1
    ARRIVAL = 0
    QUEUED = 1
    ABORT = 2
    STEP = 3
    DEPARTURE = 5
    DEADLINE = 6


class EventQueue:
    """A heap of (instant, kind, sequence number, payload); the number keeps equal entries in order of entry."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[Micros, int, int, Payload]] = []
        self._numbers = itertools.count()

    def push(self, at: Micros, due: Due, payload: Payload = None) -> None:
        heapq.heappush(self._heap, (at, due, next(self._numbers), payload))

    def pop_due(self, until: Micros) -> tuple[Micros, int, int, Payload] | None:
        """Take the first entry if it is due by `until`, else None. Deadlines of ended requests are passed over."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            entry = heapq.heappop(heap)
            if entry[1] != _DEADLINE or not _has_ended(entry[3]):
                return entry
        return None

    def next_at(self) -> Micros | None:
        """The earliest instant, or None when nothing is due ever. Deadlines of ended requests do not count."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[1] != _DEADLINE or not _has_ended(entry[3]):
                return entry[0]
            heapq.heappop(heap)
        return None


_DEADLINE = int(Due.DEADLINE)


def _has_ended(payload: Payload) -> bool:
    return isinstance(payload, Sequence) and payload.outcome is not None
