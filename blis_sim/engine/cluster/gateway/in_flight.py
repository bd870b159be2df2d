"""Requests on instances that may be given up for others."""

from blis_sim.engine.cluster.gateway.waiting import Waiting
from blis_sim.engine.cluster.unended import Unended
from blis_sim.engine.sequence import NOWHERE, Sequence


class Sheddable:
    """Those dispatched that may be shed, by importance. Cost: O(1) each, and O(those not routed yet) to take one."""

    __slots__ = ("_dispatched",)

    def __init__(self) -> None:
        self._dispatched: dict[int, Unended[Sequence]] = {}

    def add(self, waiting: Waiting) -> None:
        """One that may be shed has been dispatched."""
        dispatched = self._dispatched.get(waiting.importance)
        if dispatched is None:
            dispatched = self._dispatched[waiting.importance] = Unended(_has_ended)
        dispatched.append(waiting.sequence)

    def take(self) -> Sequence | None:
        """The latest of the least important that is on an instance; it is forgotten here."""
        for importance in sorted(self._dispatched):
            sequences = self._dispatched[importance].entries
            while sequences and sequences[-1].outcome is not None:
                sequences.pop()
            for place in range(len(sequences) - 1, -1, -1):
                sequence = sequences[place]
                if sequence.outcome is None and sequence.instance != NOWHERE:
                    return sequences.pop(place)
        return None


def _has_ended(sequence: Sequence) -> bool:
    return sequence.outcome is not None
