"""The orders in which waiting requests are considered. A new order is one function and one row of `ORDERS`."""

from collections.abc import Callable
from typing import TypeAlias

from blis_sim.engine.sequence import Sequence

SortKey: TypeAlias = Callable[[Sequence], tuple[object, ...]]


def by_priority(sequence: Sequence) -> tuple[object, ...]:
    """The most urgent first, then by arrival, then by id."""
    return (sequence.priority, sequence.arrived_at, sequence.request.id)


def by_deadline(sequence: Sequence) -> tuple[object, ...]:
    """The most urgent first, then by deadline, then by arrival, then by id."""
    return (sequence.priority, sequence.deadline_at, sequence.arrived_at, sequence.request.id)


def by_target(sequence: Sequence) -> tuple[object, ...]:
    """The most urgent first, then by the time allowed from arrival to deadline, then by arrival, then by id."""
    allowed_us = sequence.deadline_at - sequence.arrived_at
    return (sequence.priority, allowed_us, sequence.arrived_at, sequence.request.id)


def by_prompt_length(sequence: Sequence) -> tuple[object, ...]:
    """The shortest prompt first, then by arrival, then by id."""
    return (sequence.request.input_tokens, sequence.arrived_at, sequence.request.id)


def by_reverse_priority(sequence: Sequence) -> tuple[object, ...]:
    """The least urgent first: starves urgent requests, to test how others cope."""
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
