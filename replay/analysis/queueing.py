"""Whether some instances of a cluster have much longer queues than the others."""

import numpy as np

from blis_sim.engine.step_log import StepLog
from replay.simulation.record import NEVER, Ints, Record
from replay.simulation.simulate import Simulated


def num_blocked_lines(simulated: Simulated) -> int:
    """How many instances have a wait queue more than twice as long, on average over their steps, as the mean of all.

    0 for less than two instances. A request counts as waiting until it is last admitted.
    """
    instances = simulated.simulation.instances
    if len(instances) < 2:
        return 0
    lengths = [_mean_length(simulated.requests, number, engine.steps) for number, engine in enumerate(instances)]
    mean = sum(lengths) / len(lengths)
    return sum(length > 2 * mean for length in lengths) if mean > 0 else 0


def _mean_length(record: Record, instance: int, steps: StepLog) -> float:
    """Requests that wait while a step of an instance is under way, on average; 0 without steps."""
    if not len(steps):
        return 0.0
    starts, _ = steps.span(0, len(steps))
    queued = (record.instance == instance) & (record.queued_at != NEVER)
    begin = np.searchsorted(starts, record.queued_at[queued])
    end = np.searchsorted(starts, _left_queue_at(record)[queued])
    return float(np.maximum(end - begin, 0).sum()) / len(steps)


def _left_queue_at(record: Record) -> Ints:
    """When each was last admitted; the end of time for those that never were."""
    delay_us = record.scheduling_delay_us
    return np.where(delay_us == NEVER, np.iinfo(np.int64).max, record.arrived_at + delay_us)
