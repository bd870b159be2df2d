"""Requests that are kept until they have ended, without a look at each whenever one ends."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

LEAST_PRUNED = 64
"""A shorter list is left as it is."""

Entry = TypeVar("Entry")


class Unended(Generic[Entry]):
    """A list whose ended entries are dropped each time it has doubled. Cost: O(1) for each entry, on average."""

    __slots__ = ("_has_ended", "_most", "entries")

    def __init__(self, has_ended: Callable[[Entry], bool]) -> None:
        self.entries: list[Entry] = []
        """In the order in which they were added; some may have ended."""
        self._has_ended = has_ended
        self._most = LEAST_PRUNED

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) >= self._most:
            self.prune()

    def prune(self) -> None:
        """Drop all entries that have ended."""
        self.entries = [entry for entry in self.entries if not self._has_ended(entry)]
        self._most = max(LEAST_PRUNED, 2 * len(self.entries))
