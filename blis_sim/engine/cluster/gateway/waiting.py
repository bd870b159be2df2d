"""A request that waits at the gateway, before anybody has decided which instance serves it."""

from dataclasses import dataclass

from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros

NO_DEADLINE: Micros = 2**63 - 1
"""Later than any instant."""


@dataclass(slots=True)
class Waiting:
    """One request in the gateway's queue. The queue alone changes it."""

    sequence: Sequence
    importance: int
    """Of its SLO class, larger is more important; below 0 it may be shed."""
    tenant: str
    number: int
    """Counts the requests that came to the queue."""
    since: Micros
    due_at: Micros = NO_DEADLINE
    """When its SLO target runs out."""
    is_gone: bool = False
    """Whether it has left the queue, for whatever reason."""

    @property
    def is_sheddable(self) -> bool:
        return self.importance < 0
