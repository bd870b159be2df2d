"""Callbacks that are called whenever an instance of a cluster has done something."""

from collections.abc import Callable
from typing import TypeAlias

from blis_sim.engine.units import Micros

Watcher: TypeAlias = Callable[[int, Micros], None]
"""Takes the number of an instance and the instant at which it has done something."""


class Watchers(dict[int, list[Watcher]]):
    """Watchers by the number of the instance that they watch; instances without any are absent."""

    def add(self, number: int, watcher: Watcher) -> None:
        """Call `watcher` from now on.

        What it puts on the cluster's agenda for that very instant comes before anything else of the instant.
        """
        self.setdefault(number, []).append(watcher)

    def remove(self, number: int, watcher: Watcher) -> None:
        """Call `watcher` no more, if it was called until now."""
        watchers = self.get(number, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self.pop(number, None)

    def call(self, number: int, at: Micros) -> None:
        """Call all watchers of an instance."""
        for watcher in list(self[number]):
            watcher(number, at)
