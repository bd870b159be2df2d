"""The instances of a cluster: each is an engine, or a group of data-parallel ranks, with a state of its own.

An instance is advanced only when its state is needed.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.data_parallel import RankGroup


class InstanceState(Enum):
    """State of an instance."""

    LOADING = auto()
    """The instance takes no requests yet."""
    READY = auto()
    DRAINING = auto()
    """The instance takes no more requests and finishes those it has."""
    KILLED = auto()
    """The instance takes no more requests, and its requests have failed."""


class Instance:
    """One instance: its engine or ranks, its state and its snapshot for routers."""

    __slots__ = ("due_at", "engine", "num_awaited", "snapshot", "state")

    def __init__(
        self, engine: "Engine | RankGroup", number: int, state: InstanceState = InstanceState.READY, now: Micros = 0
    ) -> None:
        self.engine: Engine | RankGroup = engine
        self.state = state
        self.snapshot = Snapshot(number, now)
        self.num_awaited = 0
        """Requests routed here whose prompts are computed at another instance or on their way from there."""
        self.due_at: Micros | None = engine.next_event_at()

    @property
    def takes_requests(self) -> bool:
        return self.state is InstanceState.READY


class Instances(dict[int, Instance]):
    """Instances by number: all that were added and have not been removed.

    A heap keeps the next event of each instance, so idle instances cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next_number = 0
        """Number of the instance that is added next. No number is used twice."""
        self.engines: list[Engine] = []
        """Engines of all members, in the order of their numbers; that of an instance of ranks has several."""
        self._member_of: list[int] = []
        """Number of the instance that each engine was added with, by number of the engine."""
        self._due: list[tuple[Micros, int]] = []
        """An entry for each change of a member's `due_at`; outdated entries are skipped."""
        self._events: list[tuple[int, list[Event]]] = []

    def add(self, engine: "Engine | RankGroup", state: InstanceState, now: Micros) -> int:
        """Add an instance. Returns its number."""
        number = self.next_number
        self.next_number += 1
        engine.first_number = len(self._member_of)
        self._member_of.extend([number] * len(engine.instances))
        self[number] = Instance(engine, number, state, now)
        self.engines.extend(engine.instances)
        self._plan(number)
        return number

    def remove(self, number: int) -> None:
        """Remove an instance, which must be idle."""
        for engine in self.pop(number).engine.instances:
            self.engines.remove(engine)

    def number_of(self, engine_number: int) -> int:
        """Return the number of the instance that an engine belongs to."""
        return self._member_of[engine_number]

    def enter(self, number: int, sequence: Sequence, at: Micros) -> None:
        """Enter a request at an instance at `at`."""
        engine = self[number].engine
        sequence.instance = engine.first_number
        self._note_due_at(number, engine.enter(sequence, at))

    def enter_engine(self, engine_number: int, sequence: Sequence, at: Micros) -> None:
        """Enter a request at an engine of an instance at `at`: at one rank, where it has several."""
        number = self._member_of[engine_number]
        engine = self[number].engine
        sequence.instance = engine_number
        if isinstance(engine, Engine):
            self._note_due_at(number, engine.enter(sequence, at))
        else:
            self._note_due_at(number, engine.enter(sequence, at, engine_number - engine.first_number))

    def enter_all(self, number: int, sequences: list[Sequence]) -> None:
        """Enter requests at an instance at the instants of their arrivals."""
        engine = self[number].engine
        for sequence in sequences:
            sequence.instance = engine.first_number
        queued_at = engine.enter_all(sequences)
        if queued_at is not None:
            self._note_due_at(number, queued_at)

    def update_next_event(self, number: int) -> None:
        """Update the next event of an instance whose engine was changed from outside."""
        self._plan(number)

    def next_at(self) -> Micros | None:
        """Return the instant of the next event of any instance; None if all are idle."""
        due = self._due
        while due and ((member := self.get(due[0][1])) is None or member.due_at != due[0][0]):
            heappop(due)
        return due[0][0] if due else None

    def catch_up(self, until: Micros) -> None:
        """Advance every instance up to and including `until`."""
        due = self._due
        while due and due[0][0] <= until:
            at, number = heappop(due)
            member = self.get(number)
            if member is not None and member.due_at == at:
                self._note(number, member.engine.advance_numbered(until))

    def step(self, numbers: Iterable[int], until: Micros) -> int | None:
        """Advance the one instance of `numbers` with the first event by `until`, by that event. Returns its number.

        Empty steps behind that event are taken with it, up to where any of `numbers` may change.
        """
        due = [(at, number) for number in numbers if (at := self[number].due_at) is not None and at <= until]
        if not due:
            return None
        at, number = min(due)
        if self[number].engine.takes_only_empty_steps:
            changes = [each for _, place in due if (each := self[place].engine.next_change_at()) is not None]
            at = max(at, min([until, *(each - 1 for each in changes)]))
        self._note(number, self[number].engine.advance_numbered(at))
        return number

    def take_events(self) -> Iterator[Event]:
        """Take the events since the last call, instance by instance."""
        return chain.from_iterable(events for _, events in self.take_numbered())

    def take_numbered(self) -> list[tuple[int, list[Event]]]:
        """Take the events since the last call with the number of their engine."""
        events, self._events = self._events, []
        member_of = self._member_of
        events.sort(key=lambda numbered: member_of[numbered[0]])
        return events

    def _note(self, number: int, events: list[tuple[int, list[Event]]]) -> None:
        if events:
            self._events += events
        self._plan(number, always=True)

    def _note_due_at(self, number: int, at: Micros) -> None:
        """Record that an instance has an event at `at`."""
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
