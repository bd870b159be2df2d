"""Notices when requests end on instances, for a gateway that dispatches then instead of at regular intervals."""

from collections.abc import Callable

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.units import Micros


class Completions:
    """While switched on, calls `on_ended` with how many requests have ended and when.

    The cluster then goes from event to event, which is slower than letting its instances go on by themselves.
    """

    __slots__ = ("_cluster", "_num_ended", "_on_ended")

    def __init__(self, cluster: Cluster, on_ended: Callable[[int, Micros], None]) -> None:
        self._cluster = cluster
        self._on_ended = on_ended
        self._num_ended: dict[int, int] = {}
        """On each instance that is watched, when it was looked at last."""

    def switch(self, is_on: bool) -> None:
        """Watch all instances there are now, or none."""
        if not is_on:
            for number in self._num_ended:
                self._cluster.watchers.remove(number, self._look)
            self._num_ended = {}
            return
        members = self._cluster.members
        if self._num_ended.keys() == members.keys():
            return
        for number in [each for each in self._num_ended if each not in members]:
            del self._num_ended[number]
        for number in [each for each in members if each not in self._num_ended]:
            self._num_ended[number] = self._count(number)
            self._cluster.watchers.add(number, self._look)

    def _look(self, number: int, at: Micros) -> None:
        num_ended = self._count(number)
        if num_ended > self._num_ended[number]:
            num_new = num_ended - self._num_ended[number]
            self._num_ended[number] = num_ended
            self._on_ended(num_new, at)

    def _count(self, number: int) -> int:
        return sum(self._cluster.members[number].engine.counters.ended.values())
