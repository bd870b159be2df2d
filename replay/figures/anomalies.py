"""Signs that a run did not go as its scheduling policy means it to."""

from operator import attrgetter

import numpy as np

from replay.figures.groups import groups_of
from replay.running.record import Floats, Record
from traces.slo import class_name

_AT_ONCE = 64


def priority_inversions(record: Record) -> int:
    """Pairs of completed requests of one class of which the earlier took more than twice as long as the later.

    Only a scheduling by priority and arrival (`priority-fcfs`) means this not to happen.
    """
    groups = groups_of(map(attrgetter("slo_class"), record.rows), class_name)
    arrived_at, e2e_us = record.arrived_at, record.e2e_us.astype(np.float64)
    by_id = record.by_id
    completed = by_id[record.is_completed[by_id]]
    in_order = completed[np.argsort(arrived_at[completed], kind="stable")]
    return sum(_inversions(e2e_us[places]) for _, places in groups.members(in_order))


def _inversions(values: Floats) -> int:
    """How many pairs there are in which the earlier value is more than twice the later; O(n log^2 n)."""
    if len(values) <= _AT_ONCE:
        return int(np.triu(values[:, np.newaxis] > 2 * values, 1).sum())
    middle = len(values) // 2
    earlier, later = values[:middle], values[middle:]
    num_not_above = np.searchsorted(np.sort(earlier), 2 * later, side="right")
    return _inversions(earlier) + _inversions(later) + int((middle - num_not_above).sum())
