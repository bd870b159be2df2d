"""The event queue of a cluster, which alone decides the order of events of one instant, and watchers of instances."""

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
"""Called with the subject of the entry and the instant."""

Entry: TypeAlias = tuple[Micros, int, int, Action, Any]
"""Instant, kind, number of the entry, action, and subject of the action."""


class ClusterEventKind(IntEnum):
    """Kind of an entry of the event queue. Entries of one instant are ordered by this value, smaller first.

    All of a cluster's entries of an instant come before anything that its instances do at that instant, and the
    instances come in the order of their numbers. If k requests arrive at once, all are therefore admitted before the
    first is routed. Order and names are BLIS's (sim/cluster/cluster_event.go). Two kinds are ours: instances are killed
    together with instances that are drained, and clients hang up last.
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
    ABORT = 10


class ClusterEventQueue:
    """Entries ordered by instant, kind and number.

    Arrivals are mostly submitted in ascending order. Arrivals in ascending order go into a deque of their own, so that
    the heap stays small.
    """

    __slots__ = ("_arrivals", "_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._arrivals: deque[Entry] = deque()
        """Arrivals, ascending; all entries have one action."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap) + len(self._arrivals)

    def add(self, at: Micros, due: ClusterEventKind, action: Action, subject: object = None) -> None:
        """Add an entry that calls `action` with `subject` at `at`."""
        heappush(self._heap, (at, due, next(self._numbers), action, subject))

    def add_arrivals(self, arrivals: Iterable[Sequence], action: Action) -> None:
        """Call `action` with each of `arrivals` at its arrival; `action` must be the same in all calls."""
        line, numbers = self._arrivals, self._numbers
        last_at = line[-1][0] if line else -math.inf
        for sequence in arrivals:
            at = sequence.arrived_at
            if at >= last_at:
                line.append((at, _ARRIVAL, next(numbers), action, sequence))
                last_at = at
            else:
                self.add(at, ClusterEventKind.ARRIVAL, action, sequence)

    def next_arrival_at(self, until: Micros) -> Micros | None:
        """Return the first arrival of the line if it is due by `until` and before all other entries."""
        heap, line = self._heap, self._arrivals
        if line and line[0][0] <= until and (not heap or line[0] < heap[0]):
            return line[0][0]
        return None

    def take_arrivals(self, until: Micros, at_most: int | None = None) -> list[Sequence]:
        """Take the requests of the line that arrive by `until` and before all other entries."""
        heap, line = self._heap, self._arrivals
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
        heap, line = self._heap, self._arrivals
        if line and (not heap or line[0] < heap[0]):
            return line.popleft() if line[0][0] <= until else None
        return heappop(heap) if heap and heap[0][0] <= until else None

    def next_at(self) -> Micros | None:
        """Return the instant of the first entry; None without entries."""
        heap, line = self._heap, self._arrivals
        if line and (not heap or line[0] < heap[0]):
            return line[0][0]
        return heap[0][0] if heap else None


_ARRIVAL = int(ClusterEventKind.ARRIVAL)


Watcher: TypeAlias = Callable[[int, Micros], None]
"""Called with the number of an instance and the instant at which the instance has executed a step."""


class Watchers(dict[int, list[Watcher]]):
    """Watchers by the number of the instance that they watch; instances without any are absent."""

    def add(self, number: int, watcher: Watcher) -> None:
        """Call `watcher` after each step of an instance.

        Entries that `watcher` adds to the event queue for that instant precede everything else of the instant.
        """
        self.setdefault(number, []).append(watcher)

    def remove(self, number: int, watcher: Watcher) -> None:
        """Stop calling `watcher`; does nothing if it does not watch the instance."""
        watchers = self.get(number, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self.pop(number, None)

    def call(self, number: int, at: Micros) -> None:
        """Call all watchers of an instance."""
        for watcher in list(self[number]):
            watcher(number, at)
