"""Instants at which tokens leave for their clients: after their step, delayed by overheads that never delay the engine.

With BLIS's scheduling each token's overhead adds to the gap before it, so token number n leaves n overheads after its
step. With vLLM's, overheads overlap the following steps, so each token leaves one overhead after its own step. The
overhead of the other tokens of its step is added in both cases. Where a latency model has an API server process, that
is a queue. The tokens of a step leave in the order of the batch, after the tokens of earlier steps.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.units import Micros


class OutputOverheads(NamedTuple):
    """Delays of an engine's tokens: of all tokens of a step, per token of the step, and per token of the request."""

    step_us: Micros
    sequence_us: Micros
    token_us: Micros
    last_us: Micros
    """Further delay of the last token of a request."""


def output_overheads(config: EngineConfig, latency: LatencyModel) -> OutputOverheads:
    """Return the delays of the tokens of an engine."""
    token_us, sequence_us = latency.output_token_time, latency.output_sequence_time
    step_us, token_us = (0, token_us) if config.engine == "blis" else (token_us, 0)
    return OutputOverheads(step_us, sequence_us, token_us, latency.post_decode_time)


def output_delay(
    config: EngineConfig, latency: LatencyModel, token_number: int, num_outputs: int, is_last: bool
) -> Micros:
    """Return the time from the end of the step that produced token `token_number`, counted from 1, and `num_outputs`
    tokens in all, until it leaves."""
    found = output_overheads(config, latency)
    delay_us = found.step_us + num_outputs * found.sequence_us + token_number * found.token_us
    return delay_us + (found.last_us if is_last else 0)


class OutputQueue:
    """The API server process of an engine as a queue of tokens."""

    __slots__ = ("free_at", "turn_us")

    def __init__(self, latency: LatencyModel) -> None:
        self.turn_us = latency.output_turn_us
        """Time that one token takes."""
        self.free_at = 0.0
        """When all tokens so far have left."""

    def enter(self, at: Micros, num_outputs: int) -> float:
        """Add `num_outputs` tokens at `at`. Returns how long the first of the tokens waits for earlier ones."""
        begins_at = max(self.free_at, at)
        self.free_at = begins_at + num_outputs * self.turn_us
        return begins_at - at


def output_waits(
    ends_us: npt.NDArray[np.int64], num_outputs: npt.NDArray[np.int64], turn_us: float, free_at: float = 0.0
) -> npt.NDArray[np.float64]:
    """Return what `OutputQueue.enter` does for each step of an engine, by its end and number of tokens.

    The queue is empty from `free_at` on, but for these tokens.
    """
    before_us = (np.cumsum(num_outputs) - num_outputs) * turn_us
    begins_us = np.maximum(np.maximum.accumulate(ends_us - before_us), free_at) + before_us
    waits_us: npt.NDArray[np.float64] = begins_us - ends_us
    return waits_us
