"""Batches larger than any before: the host of a server that was just started waits for their steps.

Until a batch of some size has been sampled, memory for it is missing, and providing it waits for everything that the
GPU was given. Seen in recordings of a server on which load came suddenly: first tokens came together with those of the
next step as long as batches grew, and hardly ever later. That memory is the cause is inferred.
"""

from blis_sim.engine.scheduler.scheduled_step import ScheduledStep


class BatchGrowth:
    """The largest batch so far, in multiples of so many requests."""

    __slots__ = ("_most", "_multiple")

    def __init__(self, multiple: int) -> None:
        self._multiple = multiple
        self._most = 0

    def is_exceeded(self, step: ScheduledStep) -> bool:
        """Return whether a step with prompts samples for more requests than any before; it then counts as the
        largest."""
        num_decodes, _, tokens, newcomers = step
        if not tokens and not newcomers:
            return False
        num_requests = num_decodes + len(newcomers) + sum(each.samples for each in tokens)
        if num_requests <= self._most:
            return False
        self._most = -(-num_requests // self._multiple) * self._multiple
        return True
