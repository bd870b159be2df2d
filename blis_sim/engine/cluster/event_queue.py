"""The event queue of a cluster, which decides the order of events of one instant, and its unfinished requests by id."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, Generic, TypeAlias, TypeVar

from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Sequence
from blis_sim.engine.units import Micros

# The event queue of a cluster, which alone decides the order of events of one instant, and watchers of instances.

Action: TypeAlias = Callable[[Any, Micros], None]
"""Called with the subject of the entry and the instant."""

QueuedEvent: TypeAlias = tuple[Micros, int, int, Action, Any]
"""Instant, kind, number of the entry, action, and subject of the action."""


class ClusterEventKind(IntEnum):
    """Kind of an entry of the event queue. Entries of one instant are ordered by this value, smaller first.

    All of a cluster's entries of an instant come before the events of its instances at that instant. The instances come
    in the order of their numbers. If k requests arrive at once, all are therefore admitted before the first is routed.
    Order and names are BLIS's (sim/cluster/cluster_event.go). Two kinds are ours: instances are killed together with
    instances that are drained, and clients hang up last.
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
        self._heap: list[QueuedEvent] = []
        self._arrivals: deque[QueuedEvent] = deque()
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

    def pop_due(self, until: Micros) -> QueuedEvent | None:
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


# The unfinished requests of a cluster by id, and lists that drop ended requests when they have doubled.

MIN_PRUNED_SIZE = 1024
"""Tables of at most this size are not searched for ended requests."""


class RequestTable(dict[str, Sequence]):
    """Unfinished requests by id, and some ended ones that have not been dropped yet."""

    def __init__(self) -> None:
        super().__init__()
        self._most = MIN_PRUNED_SIZE

    def new(self, request: Request, at: Micros) -> Sequence:
        """Add a request that arrives at `at` and is on no instance yet. Raises ValueError for an id still in use."""
        known = self.get(request.id)
        if known is not None and known.outcome is None:
            raise ValueError(f"request {request.id!r} is still in the cluster")
        sequence = self[request.id] = Sequence(request, at, NOWHERE)
        return sequence

    def new_all(self, requests: SequenceOf[Request], instants: SequenceOf[Micros]) -> list[Sequence]:
        """Add requests that arrive at `instants`. Raises ValueError for an id still in use."""
        ids = [request.id for request in requests]
        if not self.keys().isdisjoint(ids) or len(set(ids)) < len(ids):
            return list(map(self.new, requests, instants))
        sequences = [Sequence(request, at, NOWHERE) for request, at in zip(requests, instants, strict=True)]
        self.update(zip(ids, sequences, strict=True))
        return sequences

    def prune_ended(self) -> None:
        """Drop ended requests when the table has doubled. Cost: O(1) per request, on average."""
        if len(self) <= self._most:
            return
        left = [(request_id, each) for request_id, each in self.items() if each.outcome is None]
        self.clear()
        self.update(left)
        self._most = max(MIN_PRUNED_SIZE, 2 * len(left))


MIN_PRUNED_LENGTH = 64
"""Shorter lists are not pruned."""

Entry = TypeVar("Entry")


class UnfinishedList(Generic[Entry]):
    """A list whose ended entries are dropped each time it has doubled. Cost: O(1) for each entry, on average."""

    __slots__ = ("_has_ended", "_most", "entries")

    def __init__(self, has_ended: Callable[[Entry], bool]) -> None:
        self.entries: list[Entry] = []
        """All entries in the order in which they were added; some may have ended."""
        self._has_ended = has_ended
        self._most = MIN_PRUNED_LENGTH

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) >= self._most:
            self.prune()

    def prune(self) -> None:
        """Drop all entries that have ended."""
        self.entries = [entry for entry in self.entries if not self._has_ended(entry)]
        self._most = max(MIN_PRUNED_LENGTH, 2 * len(self.entries))
