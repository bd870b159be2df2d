"""Instants at which tokens leave for their clients: after their step, delayed by overheads that never delay the engine.

With BLIS's scheduling each token's overhead adds to the gap before it, so token number n leaves n overheads after its
step; with vLLM's they overlap the following steps, so each token leaves one overhead after its own step. What the other
tokens of its step cost comes on top of either.
"""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.units import Micros


def output_overheads(config: EngineConfig, latency: LatencyModel, num_outputs: int) -> tuple[Micros, Micros]:
    """The delay of every token of a step that produced so many, and what is added for each token of its request so far.

    Together, for token n of a request, they are its `output_delay` unless it is the last.
    """
    token_us, step_us = latency.output_token_time, num_outputs * latency.output_sequence_time
    return (step_us, token_us) if config.engine == "blis" else (step_us + token_us, 0)


def output_delay(
    config: EngineConfig, latency: LatencyModel, token_number: int, num_outputs: int, is_last: bool
) -> Micros:
    """Return the time from the end of the step that produced token `token_number`, counted from 1, and `num_outputs`
    tokens in all, until it leaves."""
    step_us, token_us = output_overheads(config, latency, num_outputs)
    return step_us + token_number * token_us + (latency.post_decode_time if is_last else 0)
