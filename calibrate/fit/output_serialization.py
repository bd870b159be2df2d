"""Waits of tokens for their turn in the API server process, in a simulated run."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blis_sim.engine.delivery import output_waits
from replay.simulation.output_serialization import turns_in

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutputSerialization:
    """Waits of the first and the last token of each request, and by how much each grows per microsecond of a turn."""

    first_us: Floats
    first_turns: Floats
    last_us: Floats
    last_turns: Floats


def output_turns(
    ends_us: Ints, num_outputs: Ints, first_steps: Ints, last_steps: Ints, running_numbers: Ints, turn_us: float
) -> OutputSerialization:
    """Return the waits in a run with such steps, from the first and the last step of each request with a token.

    A token waits for those of its step up to its own, and as long as a busy process has not caught up, for all others
    since that was idle.
    """
    first_turns, last_turns = turns_in(first_steps, last_steps, running_numbers)
    queued_us = output_waits(ends_us, num_outputs, turn_us)
    num_before = np.cumsum(num_outputs) - num_outputs
    begun_at = np.maximum.accumulate(np.where(queued_us > 0, 0, np.arange(len(ends_us))))
    """The step with which the process became busy, for each step."""
    num_queued = num_before - num_before[begun_at]
    return OutputSerialization(
        first_us=queued_us[first_steps] + first_turns * turn_us,
        first_turns=(num_queued[first_steps] + first_turns).astype(np.float64),
        last_us=queued_us[last_steps] + last_turns * turn_us,
        last_turns=(num_queued[last_steps] + last_turns).astype(np.float64),
    )
