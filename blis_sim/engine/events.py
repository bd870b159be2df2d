"""Events of the engine, and its event queue with the order of entries at equal instants."""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import chain, count
from typing import Any, TypeAlias

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

# Events of the engine. Events report changes; tokens are derived from steps, never reported one by one.
#
# Every event carries the instant it happened on the engine's clock, whenever it is read. No event is changed after it
# is made; the classes are not frozen because that would triple the cost of making one.


@dataclass(slots=True)
class Scheduled:
    """A request joined the running batch (again, if it was preempted before)."""

    at: Micros
    sequence: Sequence


@dataclass(slots=True)
class Preempted:
    """A request lost its KV blocks and went back to the front of the wait queue."""

    at: Micros
    sequence: Sequence


@dataclass(slots=True)
class StepDone:
    """A step ended and each of `emitted` has more tokens: all up to number `sequence.tokens_at(index)`, from 1.

    One more, or with speculative decoding several. The sequences are in batch order. Their first token is the one that
    ends prefill.
    """

    at: Micros
    index: int
    started_at: Micros
    emitted: SequenceOf[Sequence]


@dataclass(slots=True)
class StepsDone:
    """Steps from index `first` on ended at `ends`, and in each of them each of `emitted` had one token more.

    Reported instead of as many `StepDone` to drivers that allow leaps.
    """

    ends: SequenceOf[Micros]
    first: int
    emitted: SequenceOf[Sequence]

    @property
    def at(self) -> Micros:
        """Return the instant at which the last of them ended."""
        return self.ends[-1]


@dataclass(slots=True)
class BatchDone:
    """The batch of a step that ended, and the KV cache behind it. Only reported on request, before its `StepDone`."""

    at: Micros
    index: int
    started_at: Micros
    shape: BatchShape
    prompts: SequenceOf[tuple[Sequence, int]]
    """Sequences that had no output token before the step, each with the number of tokens that the step computed."""
    decoding: SequenceOf[Sequence]
    """All other sequences that the step computed."""
    num_used_blocks: int
    """KV blocks in use until the step ended."""
    num_blocks_after: int
    """KV blocks in use when the sequences that it completed had given theirs back."""
    stages: SequenceOf[tuple[Micros, Micros]] = ()
    """Instants at which it entered and left each pipeline stage; empty for a single stage."""


@dataclass(slots=True)
class Finished:
    """A request ended, with the reason. For a completed one this is the end of its last step."""

    at: Micros
    sequence: Sequence
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """The prefix cache holds other content than at the end of the step before. Only reported with
    `reports_kv_changes`."""

    at: Micros
    changes: SequenceOf[CacheChange]


Event: TypeAlias = Scheduled | Preempted | BatchDone | StepDone | StepsDone | Finished | CacheChanged

# The event queue, and the order of entries at equal instants.

Payload: TypeAlias = Any
"""The sequence concerned, what a scheduler gets back at the end of a step, or the request that leaves and why."""

Entry: TypeAlias = tuple[Micros, int, Micros, int, Payload]
"""Instant, kind, rank among those of one kind, number of entry, payload."""


class EventKind(IntEnum):
    """Kind of an entry of the queue. Its value orders entries of the same instant, smaller first.

    The order of queueing, step, departure and deadline is BLIS's (sim/event.go). All requests that arrive at an instant
    are seen by a step of that instant, and a completion beats a deadline. A step's report comes before everything else
    of its end; a hang-up is seen by the step of its instant. What a cluster hands over comes before what arrives.
    """

    STEP_END = -1
    RESERVED_QUEUED = 0
    QUEUED = 1
    ABORT = 2
    STEP = 3
    DEPARTURE = 5
    DEADLINE = 6


class EventQueue:
    """Entries in the order of their instants, kinds, ranks and entry. Deadlines of ended requests are passed over.

    Arrivals known beforehand and deadlines mostly come in ascending order. Those that do stand in lines of their own,
    which keeps the heap small.
    """

    __slots__ = ("_arrivals", "_deadlines", "_heap", "_numbers", "num_aborts")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._arrivals: deque[Entry] = deque()
        self._deadlines: deque[Entry] = deque()
        self._numbers = count()
        self.num_aborts = 0
        """Hang-ups among the entries."""

    def push(self, at: Micros, due: EventKind, payload: Payload = None, rank: Micros = 0) -> None:
        entry = (at, due, rank, next(self._numbers), payload)
        deadlines = self._deadlines
        if due == _DEADLINE and (not deadlines or deadlines[-1] < entry):
            deadlines.append(entry)
        else:
            heappush(self._heap, entry)
            if due == _ABORT:
                self.num_aborts += 1

    def push_queued(self, instants: Iterable[Micros], sequences: Iterable[Sequence]) -> None:
        """Push many of kind `QUEUED`, ranked as by `Engine.enter`, as many as instants. Costs less for each than
        `push`."""
        arrivals, numbers = self._arrivals, self._numbers
        for at, sequence in zip(instants, sequences, strict=False):
            rank = at if sequence.request.follows else sequence.arrived_at
            entry = (at, _QUEUED, rank, next(numbers), sequence)
            if not arrivals or arrivals[-1] < entry:
                arrivals.append(entry)
            else:
                heappush(self._heap, entry)

    def pop_due(self, until: Micros) -> Entry | None:
        """Take the first entry if it is due by `until`, else None."""
        heap, arrivals, deadlines = self._heap, self._arrivals, self._deadlines
        while True:
            if (
                arrivals
                and (first := arrivals[0])[0] <= until
                and (not deadlines or first < deadlines[0])
                and (not heap or first < heap[0])
            ):
                return arrivals.popleft()
            if deadlines and deadlines[0][0] <= until and (not heap or deadlines[0] < heap[0]):
                entry = deadlines.popleft()
            elif heap and heap[0][0] <= until:
                entry = heappop(heap)
            else:
                return None
            if entry[1] <= _QUEUED:
                return entry
            if entry[1] == _ABORT:
                self.num_aborts -= 1
            if entry[1] != _DEADLINE or entry[4].outcome is None:
                return entry

    def next_at(self) -> Micros | None:
        """The earliest instant, or None when nothing is due ever."""
        heap, arrivals, deadlines = self._heap, self._arrivals, self._deadlines
        if not heap and not deadlines:
            return arrivals[0][0] if arrivals else None
        while heap and heap[0][1] == _DEADLINE and heap[0][4].outcome is not None:
            heappop(heap)
        while deadlines and deadlines[0][4].outcome is not None:
            deadlines.popleft()
        line = arrivals if not deadlines or (arrivals and arrivals[0][0] < deadlines[0][0]) else deadlines
        if line and (not heap or line[0][0] < heap[0][0]):
            return line[0][0]
        return heap[0][0] if heap else None

    def next_but_steps_at(self) -> Micros | None:
        """The earliest instant of an entry that is no step and no end of one, or None without such an entry."""
        lines = (line[0][0] for line in (self._arrivals, self._deadlines) if line)
        others = (entry[0] for entry in self._heap if entry[1] != _STEP and entry[1] != _STEP_END)
        return min(chain(lines, others), default=None)

    def ranks(self, due: EventKind) -> Iterator[Micros]:
        """The ranks of all entries of a kind, in no order."""
        return (entry[2] for entry in chain(self._heap, self._arrivals, self._deadlines) if entry[1] == due)


_DEADLINE, _ABORT, _QUEUED = int(EventKind.DEADLINE), int(EventKind.ABORT), int(EventKind.QUEUED)
_STEP, _STEP_END = int(EventKind.STEP), int(EventKind.STEP_END)
