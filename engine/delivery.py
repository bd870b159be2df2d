"""When a token leaves for its client: after its step, delayed by overheads that never delay the engine.

With BLIS's scheduling each token's overhead adds to the gap before it, so token number n leaves n overheads after its
step; with vLLM's they overlap the following steps, so each token leaves one overhead after its own step. What the other
tokens of its step cost comes on top of either.
"""

from engine.config import EngineConfig
from engine.latency.model import LatencyModel
from engine.units import Micros


def output_delay(
    config: EngineConfig, latency: LatencyModel, token_number: int, num_outputs: int, is_last: bool
) -> Micros:
    """From the end of the step that produced token `token_number`, counted from 1, and `num_outputs` tokens in all,
    until it leaves."""
    overheads = token_number if config.scheduling == "blis" else 1
    delay_us = overheads * latency.output_token_time + num_outputs * latency.output_sequence_time
    return delay_us + (latency.post_decode_time if is_last else 0)
