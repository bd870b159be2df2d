"""The choice of the request that loses its blocks when a running one needs one more. A new policy is one function and
one row of `VICTIMS`."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TypeAlias

from blis_sim.engine.sequence import Sequence

ChooseVictim: TypeAlias = Callable[[SequenceOf[Sequence]], int]
"""Index of the victim in the running list, which is not empty."""


def latest_admitted(running: SequenceOf[Sequence]) -> int:
    """The last of the running list."""
    return len(running) - 1


def least_urgent(running: SequenceOf[Sequence]) -> int:
    """The largest priority value, among equals the latest arrival, among equals the one nearest the tail."""
    return max(range(len(running)), key=lambda index: (running[index].priority, running[index].arrived_at, index))


def least_urgent_latest_due(running: SequenceOf[Sequence]) -> int:
    """The largest priority value, among equals the latest deadline, among equals the one nearest the tail."""
    return max(range(len(running)), key=lambda index: (running[index].priority, running[index].deadline_at, index))


VICTIMS: dict[str, ChooseVictim] = {
    "fcfs": latest_admitted,
    "priority": least_urgent,
    "gap": least_urgent_latest_due,
}
