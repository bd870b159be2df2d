"""Places in the running batch that requests lose to more urgent ones: bounded preemption by a gap of priorities."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.scheduler.preemption import least_urgent_latest_due
from blis_sim.engine.sequence import Sequence


class Places:
    """Finds the running request that a waiting one takes the place of, never twice for one pair.

    So the preemptions of a request are at most as many as there are more urgent requests.
    """

    def __init__(self, min_gap: int) -> None:
        self._min_gap = min_gap
        self._taken_by: dict[Sequence, set[Sequence]] = {}
        """For each request that lost its place and has not ended, those that took it."""

    def find_victim(self, candidate: Sequence, running: SequenceOf[Sequence]) -> int | None:
        """The index of the one that loses its place to `candidate`; None while all keep theirs. Cost: O(running)."""
        if not running:
            return None
        index = least_urgent_latest_due(running)
        victim = running[index]
        if victim.priority - candidate.priority < self._min_gap or candidate in self._taken_by.get(victim, ()):
            return None
        self._taken_by.setdefault(victim, set()).add(candidate)
        return index

    def forget(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        self._taken_by.pop(sequence, None)
