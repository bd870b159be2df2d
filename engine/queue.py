"""The event queue: one heap, and the one place that says what comes first when instants are equal."""

import itertools
from collections import deque
from enum import IntEnum
from heapq import heappop, heappush
from typing import TypeAlias

from engine.sequence import Sequence
from engine.units import Micros

Payload: TypeAlias = object
"""The sequence concerned, what a stepping wants back at the end of a step, or who leaves and why."""

Entry: TypeAlias = tuple[Micros, int, Micros, int, Payload]
"""Instant, kind, rank among those of one kind, number of entry, payload."""


class Due(IntEnum):
    """What an entry of the queue is. Its value orders entries of the same instant, smaller first.

    The order of queueing, step, departure and deadline is BLIS's (sim/event.go): all requests that arrive at an instant
    are seen by a step of that instant, and a completion beats a deadline. A step's report comes before everything else
    of its end; a hang-up is seen by the step of its instant.
    """

    STEP_END = -1
    QUEUED = 1
    ABORT = 2
    STEP = 3
    DEPARTURE = 5
    DEADLINE = 6


class EventQueue:
    """Entries in the order of their instants, kinds, ranks and entry. Deadlines of ended requests are passed over.

    Deadlines mostly lie far ahead and come in ascending, so those that do stand in a line of their own: the heap stays
    small, and its cost with it.
    """

    __slots__ = ("_heap", "_line", "_numbers")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._line: deque[Entry] = deque()
        self._numbers = itertools.count()

    def push(self, at: Micros, due: Due, payload: Payload = None, rank: Micros = 0) -> None:
        entry = (at, due, rank, next(self._numbers), payload)
        line = self._line
        if due == _DEADLINE and (not line or line[-1][0] <= at):
            line.append(entry)
        else:
            heappush(self._heap, entry)

    def pop_due(self, until: Micros) -> Entry | None:
        """Take the first entry if it is due by `until`, else None."""
        heap, line = self._heap, self._line
        if line and (not heap or line[0] < heap[0]):
            if _has_ended(line[0][4]):
                self._pass_over()
            if line and (not heap or line[0] < heap[0]):
                return line.popleft() if line[0][0] <= until else None
        while heap and heap[0][0] <= until:
            entry = heappop(heap)
            if entry[1] != _DEADLINE or not _has_ended(entry[4]):
                return entry
        return None

    def next_at(self) -> Micros | None:
        """The earliest instant, or None when nothing is due ever."""
        heap, line = self._heap, self._line
        while heap and heap[0][1] == _DEADLINE and _has_ended(heap[0][4]):
            heappop(heap)
        if line and (not heap or line[0][0] < heap[0][0]):
            self._pass_over()
            if line and (not heap or line[0][0] < heap[0][0]):
                return line[0][0]
        return heap[0][0] if heap else None

    def _pass_over(self) -> None:
        """Drop the deadlines of ended requests at the head of the line."""
        line = self._line
        while line and _has_ended(line[0][4]):
            line.popleft()


_DEADLINE = int(Due.DEADLINE)


def _has_ended(payload: Payload) -> bool:
    return payload.__class__ is Sequence and payload.outcome is not None
