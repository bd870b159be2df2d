"""What a cluster has to do and when, and the one place that says what comes first when instants are equal."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, TypeAlias

from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

Action: TypeAlias = Callable[[Any, Micros], None]
"""Takes what it is about and the instant that has come."""

Entry: TypeAlias = tuple[Micros, int, int, Action, Any]
"""Instant, kind, number of entry, what to do and what with."""


class ClusterDue(IntEnum):
    """What an entry of the agenda is. Its value orders entries of the same instant, smaller first.

    All of a cluster's entries of an instant come before anything that its instances do at that instant, and the
    instances come in the order of their numbers. So if k requests arrive at once, all are admitted before the first is
    routed. Order and names are BLIS's (sim/cluster/cluster_event.go), but for what only we have: instances that are
    killed go with those that are drained, and who hangs up does so last.
    """

    INSTANCE_LEAVES = -2
    INSTANCE_READY = -1
    ARRIVAL = 0
    ADMISSION = 1
    ROUTING = 2
    PREFILL_ROUTING = 4
    TRANSFER_STARTED = 5
    TRANSFER_COMPLETED = 6
    QUEUE_TTL = 6
    DISPATCH = 7
    SCALING = 8
    SCALE_ACTUATION = 9
    HANG_UP = 10


class Agenda:
    """Entries in the order of their instants, kinds and entry.

    Arrivals are mostly told in ascending order, so those that are may stand in a line of their own: the heap stays
    small.
    """

    __slots__ = ("_heap", "_line", "_numbers")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._line: deque[Entry] = deque()
        """All with one action."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap) + len(self._line)

    def add(self, at: Micros, due: ClusterDue, action: Action, about: object = None) -> None:
        """Do `action` at `at`."""
        heappush(self._heap, (at, due, next(self._numbers), action, about))

    def line_up(self, arrivals: Iterable[Sequence], action: Action) -> None:
        """Do `action` with each of these requests at its arrival; it is the same in all calls."""
        line, numbers = self._line, self._numbers
        last_at = line[-1][0] if line else -math.inf
        for sequence in arrivals:
            at = sequence.arrived_at
            if at >= last_at:
                line.append((at, _ARRIVAL, next(numbers), action, sequence))
                last_at = at
            else:
                self.add(at, ClusterDue.ARRIVAL, action, sequence)

    def next_in_line(self, until: Micros) -> Micros | None:
        """When the first in the line arrives, if that is by `until` and before anything else is to be done."""
        heap, line = self._heap, self._line
        if line and line[0][0] <= until and (not heap or line[0] < heap[0]):
            return line[0][0]
        return None

    def take_line(self, until: Micros, at_most: int | None = None) -> list[Sequence]:
        """Take the requests in the line that arrive by `until`, and before anything else is to be done."""
        heap, line = self._heap, self._line
        stop: tuple[float, ...] = heap[0][:3] if heap and heap[0][0] <= until else (until, math.inf)
        if at_most is None and line and line[-1] < stop:
            taken = [entry[4] for entry in line]
            line.clear()
            return taken
        taken = []
        while line and line[0] < stop and len(taken) != at_most:
            taken.append(line.popleft()[4])
        return taken

    def pop_due(self, until: Micros) -> Entry | None:
        """Take the first entry if it is due by `until`, else None."""
        heap, line = self._heap, self._line
        if line and (not heap or line[0] < heap[0]):
            return line.popleft() if line[0][0] <= until else None
        return heappop(heap) if heap and heap[0][0] <= until else None

    def next_at(self) -> Micros | None:
        """The earliest instant, or None when there is nothing to do."""
        heap, line = self._heap, self._line
        if line and (not heap or line[0] < heap[0]):
            return line[0][0]
        return heap[0][0] if heap else None


_ARRIVAL = int(ClusterDue.ARRIVAL)
