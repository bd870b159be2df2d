"""What a client sees of one request, derived from the engine's step log once it has ended."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.core import Engine
from engine.delivery import output_delay
from engine.events import Finished
from engine.sequence import Outcome, Sequence
from engine.simulation import Simulation
from engine.units import Micros

COMPLETED = frozenset({Outcome.COMPLETED, Outcome.LENGTH_CAPPED})


class Latencies(NamedTuple):
    """One request's latencies in microseconds; None for what never happened.

    TTFT includes the queueing overhead before the engine and the output overhead of the first token; E2E ends with the
    last token and the overhead after it. What tokens wait for the others of their step is not in it.
    """

    ttft_us: Micros | None
    e2e_us: Micros | None
    itl_mean_us: float
    scheduling_delay_us: Micros | None
    output_tokens: int


def latencies(engine: Engine, sequence: Sequence) -> Latencies:
    """What has become of a request: all of it when it has ended, else what is known so far."""
    completed = sequence.outcome in COMPLETED
    ttft_us = e2e_us = None
    itl_mean_us = 0.0
    first_token_at = sequence.first_token_at
    if first_token_at is not None:
        ttft_us = first_token_at + engine.latency.output_token_time - sequence.arrived_at
    if completed:
        assert ttft_us is not None
        itl_sum_us = _itl_sum(engine, sequence)
        has_output = sequence.request.output_tokens > 0
        e2e_us = ttft_us + itl_sum_us + (engine.latency.post_decode_time if has_output else 0)
        if has_output:
            capped = sequence.outcome is Outcome.LENGTH_CAPPED
            gaps = (sequence.num_decoded_tokens if capped else sequence.request.output_tokens) - 1
            itl_mean_us = itl_sum_us / max(gaps, 1)
    scheduled_at = sequence.scheduled_at
    return Latencies(
        ttft_us=ttft_us,
        e2e_us=e2e_us,
        itl_mean_us=itl_mean_us,
        scheduling_delay_us=None if scheduled_at is None else scheduled_at - sequence.arrived_at,
        output_tokens=sequence.num_output_tokens if completed else 0,
    )


def replied_at(simulation: Simulation, finished: Finished) -> Micros:
    """When the last token of a completed request reaches its client.

    How many other tokens its step produced is taken to be how many requests the next step computes.
    """
    engine = simulation.instances[finished.sequence.instance]
    num_tokens, num_outputs = finished.sequence.num_output_tokens, engine.last_shape.num_requests
    delay_us = output_delay(engine.config, engine.latency, max(1, num_tokens), num_outputs, is_last=num_tokens > 0)
    return finished.at + delay_us


def token_times(engine: Engine, sequence: Sequence) -> npt.NDArray[np.int64]:
    """When tokens of a completed request reached its client, on the engine's clock, in microseconds.

    One instant per step that brought any, as the tokens of a step travel together.
    """
    assert sequence.first_token_at is not None
    overhead_us = engine.latency.output_token_time
    first_us = sequence.first_token_at + overhead_us
    spans = [engine.steps.span(first, count) for first, count in sequence.token_runs]
    if engine.config.scheduling == "blis":
        gaps_us = [ends - starts + overhead_us for starts, ends in spans]
        times_us = first_us + np.cumsum(np.concatenate([np.zeros(1, np.int64), *gaps_us]))
    else:
        times_us = np.concatenate([np.array([first_us]), *(ends + overhead_us for _, ends in spans)])
    # A request without output ends where its first token would have come.
    return times_us[: sequence.num_output_tokens]


def _itl_sum(engine: Engine, sequence: Sequence) -> Micros:
    """All time between a request's first and last token.

    BLIS counts a step's duration plus one output overhead for each token, so time between steps in which a request got
    nothing is not part of it. With vLLM's scheduling it is what passes between the ends of its steps.
    """
    if engine.config.scheduling == "blis":
        overheads_us = sequence.num_decoded_tokens * engine.latency.output_token_time
        return overheads_us + sum(engine.steps.run_time(first, count) for first, count in sequence.token_runs)
    if not sequence.token_runs:
        return 0
    assert sequence.first_token_step is not None
    first, count = sequence.token_runs[-1]
    return engine.steps.end(first + count - 1) - engine.steps.end(sequence.first_token_step)
