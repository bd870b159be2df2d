"""The instances of a cluster: each an engine of its own, advanced only when somebody wants to know of it."""

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.events import Event
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.core import Engine


class Life(Enum):
    """What an instance is good for."""

    LOADING = auto()
    """It takes no requests yet."""
    READY = auto()
    DRAINING = auto()
    """It takes no more requests and finishes those it has."""
    KILLED = auto()
    """It takes no more requests and has given up those it had."""


class Member:
    """One instance: its engine, what the router knows of it, and whether it takes requests."""

    __slots__ = ("due_at", "engine", "life", "snapshot")

    def __init__(self, engine: "Engine", number: int, life: Life = Life.READY, now: Micros = 0) -> None:
        self.engine = engine
        self.life = life
        self.snapshot = Snapshot(number, now)
        self.due_at: Micros | None = engine.next_event_at()

    @property
    def takes_requests(self) -> bool:
        return self.life is Life.READY


class Members(dict[int, Member]):
    """Instances by number: all that were added and have not been removed.

    When each has something to do next is kept in a heap, so those that have nothing to do cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next_number = 0
        """Number of the instance that is added next. No number is used twice."""
        self.engines: list[Engine] = []
        """Engines of all members, in the order of their numbers."""
        self._due: list[tuple[Micros, int]] = []
        """An entry for each change of a member's `due_at`; those that are no longer true are passed over."""
        self._told: list[tuple[int, list[Event]]] = []

    def add(self, engine: "Engine", life: Life, now: Micros) -> int:
        """One more instance; returns its number."""
        number = self.next_number
        self.next_number += 1
        self[number] = Member(engine, number, life, now)
        self.engines.append(engine)
        self._plan(number)
        return number

    def remove(self, number: int) -> None:
        """Forget an instance, which must have nothing left to do."""
        self.engines.remove(self.pop(number).engine)

    def enter(self, number: int, sequence: Sequence, at: Micros) -> None:
        """A request comes to an instance at `at`."""
        sequence.instance = number
        self._due_by(number, self[number].engine.enter(sequence, at))

    def enter_all(self, number: int, sequences: list[Sequence]) -> None:
        """Requests come to an instance at the instants at which they arrive."""
        for sequence in sequences:
            sequence.instance = number
        queued_at = self[number].engine.enter_all(sequences)
        if queued_at is not None:
            self._due_by(number, queued_at)

    def woken(self, number: int) -> None:
        """Somebody has given an instance something to do."""
        self._plan(number)

    def next_at(self) -> Micros | None:
        """When the first of them has something to do; None when none ever has."""
        due = self._due
        while due and ((member := self.get(due[0][1])) is None or member.due_at != due[0][0]):
            heappop(due)
        return due[0][0] if due else None

    def catch_up(self, until: Micros) -> None:
        """Let all do what is due up to and including `until`, on their own."""
        due = self._due
        while due and due[0][0] <= until:
            at, number = heappop(due)
            member = self.get(number)
            if member is not None and member.due_at == at:
                self._note(number, member.engine.advance(until))

    def step(self, numbers: Iterable[int], until: Micros) -> int | None:
        """Let the first of these that has something to do by `until` do it, and nothing after. Returns its number."""
        due = [(at, number) for number in numbers if (at := self[number].due_at) is not None and at <= until]
        if not due:
            return None
        at, number = min(due)
        self._note(number, self[number].engine.advance(at))
        return number

    def take_events(self) -> Iterator[Event]:
        """What has happened since, instance by instance."""
        return chain.from_iterable(events for _, events in self.take_told())

    def take_told(self) -> list[tuple[int, list[Event]]]:
        """The same, with the number of each instance."""
        told, self._told = self._told, []
        told.sort(key=_number)
        return told

    def _note(self, number: int, events: list[Event]) -> None:
        if events:
            self._told.append((number, events))
        self._plan(number, always=True)

    def _due_by(self, number: int, at: Micros) -> None:
        """An instance has something to do at `at`."""
        member = self[number]
        if member.due_at is None or at < member.due_at:
            member.due_at = at
            heappush(self._due, (at, number))

    def _plan(self, number: int, always: bool = False) -> None:
        member = self[number]
        due_at = member.engine.next_event_at()
        if always or due_at != member.due_at:
            member.due_at = due_at
            if due_at is not None:
                heappush(self._due, (due_at, number))


def _number(told: tuple[int, list[Event]]) -> int:
    return told[0]
