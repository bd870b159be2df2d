"""Tells a simulated run that will never end from one that is only slow.

Where requests take each other's KV blocks in turn, each computes the same tokens again and again, as it would in the
real scheduler. Rules that allow it: BLIS's for a request that outgrows the whole cache, vLLM's where prompts are
admitted before all of their blocks are free and victims are chosen among equals.
"""

from blis_sim.engine.errors import EngineError
from blis_sim.engine.simulation import Simulation

LOOK_EVERY = 64
"""One look for so many stretches, where a run is made of short ones."""
MOST_PREEMPTIONS = 1000
"""For each request in the simulation, and once more: no run that goes on preempts so often before a request ends."""


class ProgressWatch:
    """Looks at how often requests are preempted between two that end."""

    def __init__(self, simulation: Simulation, every: int = 1) -> None:
        """`every` is how many calls of `look` one look is for, to make the others cheap."""
        self._simulation = simulation
        self._every = every
        self._num_calls = 0
        self._num_ended = -1
        self._num_preemptions = 0
        """When a request ended last."""

    def look(self) -> None:
        """Raise EngineError when the run will not end."""
        self._num_calls += 1
        if self._num_calls % self._every:
            return
        engines = self._simulation.instances
        num_ended = sum(sum(engine.counters.ended.values()) for engine in engines)
        num_preemptions = sum(engine.counters.num_preemptions for engine in engines)
        if num_ended != self._num_ended:
            self._num_ended, self._num_preemptions = num_ended, num_preemptions
            return
        num_live = sum(len(engine.live) for engine in engines)
        num_new = num_preemptions - self._num_preemptions
        if num_new > MOST_PREEMPTIONS * (1 + num_live):
            now_us = self._simulation.now
            raise EngineError(
                f"the run does not end: {num_live} requests were preempted {num_new} times since one ended; at "
                f"{now_us} us they take KV blocks from each other for ever; give more KV blocks or a horizon"
            )
