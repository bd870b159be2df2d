"""The unfinished requests of a cluster by id, and lists that drop ended requests when they have doubled."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Generic, TypeVar

from blis_sim.engine.request import Request
from blis_sim.engine.sequence import NOWHERE, Sequence
from blis_sim.engine.units import Micros

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
