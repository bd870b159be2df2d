"""Policies of a scheduler by name: the order of waiting requests, their priorities, and the requests that lose blocks
or places.

A new policy is one function and one row of `ORDERS`, `PRIORITIES` or `VICTIMS`. BLIS's published description scores a
request `base + age_weight * (clock - arrival)` with `slo-based`, the same with a minus with `inverted-slo`, and larger
scores come first. All requests age alike. The scores of two of them differ by their bases and by `age_weight * (arrival
of one - arrival of the other)` at every instant, so their order is known when they arrive.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TypeAlias

from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITY, AgeScores, SloPriorities

SortKey: TypeAlias = Callable[[Sequence], tuple[object, ...]]


def by_priority(sequence: Sequence) -> tuple[object, ...]:
    """Sort by urgency, then by arrival, then by id."""
    return (sequence.priority, sequence.arrived_at, sequence.request.id)


def by_deadline(sequence: Sequence) -> tuple[object, ...]:
    """Sort by urgency, then by deadline, then by arrival, then by id."""
    return (sequence.priority, sequence.deadline_at, sequence.arrived_at, sequence.request.id)


def by_target(sequence: Sequence) -> tuple[object, ...]:
    """Sort by urgency, then by the time from arrival to deadline, then by arrival, then by id."""
    allowed_us = sequence.deadline_at - sequence.arrived_at
    return (sequence.priority, allowed_us, sequence.arrived_at, sequence.request.id)


def by_prompt_length(sequence: Sequence) -> tuple[object, ...]:
    """Sort by prompt length, the shortest first, then by arrival, then by id."""
    return (sequence.input_tokens, sequence.arrived_at, sequence.request.id)


def by_reverse_priority(sequence: Sequence) -> tuple[object, ...]:
    """Sort by urgency, the least urgent first: starves urgent requests, for tests of clients."""
    return (-sequence.priority, sequence.arrived_at, sequence.request.id)


ORDERS: dict[str, SortKey | None] = {
    "fcfs": None,
    "priority-fcfs": by_priority,
    "priority-deadline": by_deadline,
    "priority-slo-target": by_target,
    "sjf": by_prompt_length,
    "reverse-priority": by_reverse_priority,
}
"""Scheduler name to sort key, applied stably at every step; None leaves the queue as it is."""


PriorityPolicy: TypeAlias = Callable[[Request, Micros], int]
"""A function from a request and its arrival to its priority."""


def by_slo_class(priorities: SloPriorities, _scores: AgeScores) -> PriorityPolicy:
    """Return a policy: the request's own priority, else that of its SLO class."""
    urgency = {name: priorities.urgency(name) for name in priorities.by_class}
    standard = priorities.highest - DEFAULT_SLO_PRIORITY

    def priority(request: Request, _arrived_at: Micros) -> int:
        return urgency.get(request.slo_class, standard) if request.priority is None else request.priority

    return priority


def all_alike(_priorities: SloPriorities, _scores: AgeScores) -> PriorityPolicy:
    """Return a policy: 0 for every request."""
    return lambda _request, _arrived_at: 0


def oldest_first(_priorities: SloPriorities, scores: AgeScores) -> PriorityPolicy:
    """Return a policy: a score that grows with age, so that no request starves."""
    return lambda request, arrived_at: scores.priority(request.slo_class, arrived_at)


def youngest_first(_priorities: SloPriorities, scores: AgeScores) -> PriorityPolicy:
    """Return a policy: a score that falls with age, so that waiting requests starve, for tests of clients."""
    return lambda request, arrived_at: scores.priority(request.slo_class, arrived_at, sign=-1)


PRIORITIES: dict[str, Callable[[SloPriorities, AgeScores], PriorityPolicy]] = {
    "slo-class": by_slo_class,
    "constant": all_alike,
    "slo-based": oldest_first,
    "inverted-slo": youngest_first,
    "slo-urgency": by_slo_class,  # and `Urgency` raises it while it waits
}
"""Policy name to priority, given when a request is queued."""


ChooseVictim: TypeAlias = Callable[[SequenceOf[Sequence]], int]
"""Index of the victim in the running list, which is not empty."""


def latest_admitted(running: SequenceOf[Sequence]) -> int:
    """Return the index of the last running request."""
    return len(running) - 1


def least_urgent(running: SequenceOf[Sequence]) -> int:
    """Return the index of the largest priority value; of equals the latest arrival, then the one nearest the tail."""
    return max(range(len(running)), key=lambda index: (running[index].priority, running[index].arrived_at, index))


def least_urgent_latest_due(running: SequenceOf[Sequence]) -> int:
    """Return the index of the largest priority value; of equals the latest deadline, then the one nearest the tail."""
    return max(range(len(running)), key=lambda index: (running[index].priority, running[index].deadline_at, index))


VICTIMS: dict[str, ChooseVictim] = {
    "fcfs": latest_admitted,
    "priority": least_urgent,
    "gap": least_urgent_latest_due,
}


class SlotPreemption:
    """Finds the running request that a waiting one takes the place of, never twice for one pair.

    So the preemptions of a request are at most as many as there are more urgent requests.
    """

    def __init__(self, min_gap: int) -> None:
        self._min_gap = min_gap
        self._taken_by: dict[Sequence, set[Sequence]] = {}
        """For each unfinished request that lost its place, the requests that took it."""

    def find_victim(self, candidate: Sequence, running: SequenceOf[Sequence]) -> int | None:
        """Return the index of the request that loses its place to `candidate`; None if none does. Cost: O(running)."""
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
