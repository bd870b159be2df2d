"""How a driver that is behind catches up: for a while at a time, so that sockets are served, and in large stretches."""

from collections.abc import Callable, Mapping

from blis_sim.engine.events import StepDone
from blis_sim.engine.units import Micros

SHORTEST_SLICE_S = 0.002
"""A driver that has fallen behind serves the connections this often, or when it is far behind..."""
LONGEST_SLICE_S = 0.02
"""...at least this often: longer slices let more tokens of a stream leave in one write."""
FAR_BEHIND_STEPS = 4
"""The engine is far behind when so many steps like the latest are due. Then it is asked for many at a time,
some at least..."""
FEWEST_STEPS = 8
STRETCH_TOKENS = (64, 8192)
"""...which bring as many tokens, between these, as can be handed over in a good part of a slice."""


class BacklogSlices:
    """Says how far to go at a time and when to let others have their turn."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._step_us: Micros = 0
        """How long the latest step took in simulated time, and..."""
        self._num_outputs = 0
        """...the tokens that it produced."""
        self._monotonic = monotonic
        self._stretch_tokens = STRETCH_TOKENS[0]
        self._started_s = self._stretch_started_s = 0.0
        self._slice_s = SHORTEST_SLICE_S

    def begin(self, now_s: float, behind_s: float) -> None:
        """A slice begins, with the first of what is due so late."""
        self._started_s = self._stretch_started_s = now_s
        self._slice_s = min(max(SHORTEST_SLICE_S, behind_s / 4), LONGEST_SLICE_S)

    def learn(self, event: StepDone, gaps: Mapping[Micros, int], num_requests: int) -> None:
        """A step has ended. One that took no time is a request's own, and others have theirs in between."""
        if event.at > event.started_at:
            self._step_us, self._num_outputs = event.at - event.started_at, len(event.emitted)
        elif gaps:
            self._step_us, self._num_outputs = max(gaps), num_requests

    def stretch(self, due_at: Micros, due_until: Micros) -> Micros:
        """How far to advance at once: to what is due next, or when far behind over many steps.

        No further than needed, since requests cannot arrive before what has been done.
        """
        if due_until - due_at < FAR_BEHIND_STEPS * self._step_us:
            return due_at
        num_steps = max(FEWEST_STEPS, self._stretch_tokens // max(1, self._num_outputs))
        return min(due_until, due_at + num_steps * self._step_us)

    def is_over(self) -> bool:
        """Whether the slice is over. Asked after each stretch, it learns how long they should be."""
        now_s = self._monotonic()
        fewest, most = STRETCH_TOKENS
        took_s, self._stretch_started_s = now_s - self._stretch_started_s, now_s
        if took_s > self._slice_s:
            self._stretch_tokens = max(fewest, self._stretch_tokens // 2)
        elif took_s < self._slice_s / 3:
            self._stretch_tokens = min(most, self._stretch_tokens * 2)
        return now_s - self._started_s > self._slice_s
