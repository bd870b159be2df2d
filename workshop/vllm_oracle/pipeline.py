"""Random pipeline stages, laid over the settings of a workload."""

from dataclasses import replace

import numpy as np

from blis_sim.engine.config import EngineConfig, PipelineStages
from blis_sim.engine.errors import EngineError
from workshop.vllm_oracle.workload import TICK_US, Workload

PARTS = 8
"""Stages take whole eighths of a step whose times are multiples of eight ticks, so that all instants stay on the grid.
"""


def with_pipeline(workload: Workload, seed: int, num_stages: int) -> Workload:
    """Return the workload with so many pipeline stages; one in two have stages that take equally long, about."""
    generator = np.random.default_rng((seed, 2))
    if generator.random() < 0.5:
        ends = [round(PARTS * stage / num_stages) for stage in range(1, num_stages)]
    else:
        ends = sorted(int(end) for end in generator.choice(range(1, PARTS), num_stages - 1, replace=False))
    shares = tuple((end - start) / PARTS for start, end in zip([0, *ends], [*ends, PARTS], strict=True))
    pipeline = PipelineStages(
        shares,
        transfer_start_us=int(generator.choice([0, 0, 1, 5])) * TICK_US,
        transfer_token_us=int(generator.choice([0, 0, 0, TICK_US])),
    )
    latency = workload.latency
    slowed = replace(
        latency,
        step_us=latency.step_us * PARTS,
        token_us=latency.token_us * PARTS,
        request_us=latency.request_us * PARTS,
    )
    return replace(workload, config=_with_room(workload.config, pipeline), latency=slowed)


def _with_room(config: EngineConfig, pipeline: PipelineStages) -> EngineConfig:
    """Return the settings with stages and room for the longest request, which holds more with more steps in flight."""
    blocks = config.total_kv_blocks
    while True:
        try:
            return replace(config, pipeline=pipeline, total_kv_blocks=blocks)
        except EngineError:
            blocks += 1
