"""Random CPU memory for KV blocks, laid over the settings of a workload."""

from dataclasses import replace

import numpy as np

from blis_sim.engine.offloading import OffloadConfig
from workshop.vllm_oracle.workload import TICK_US, Workload


def with_offloading(workload: Workload, seed: int) -> Workload:
    """Return the workload with CPU memory that is scarce or ample, and transfers that are fast or slow."""
    generator = np.random.default_rng((seed, 6))
    num_blocks = int(generator.integers(2, 30 if generator.random() < 0.5 else 200))
    block_us = TICK_US * float(generator.choice([0.0, 0.2, 1.0, 1.0, 4.0, 20.0]))
    config = workload.config
    speculation = config.speculation
    threshold = config.long_prefill_token_threshold
    if speculation is not None:
        # With connectors vLLM names blocks by their tokens alone. It asserts that no threshold cuts a newcomer that
        # decodes, as one does that is loaded whole.
        speculation = replace(speculation, hashes_next_token=False)
        threshold = 0 if threshold <= speculation.num_tokens else threshold
    config = replace(
        config,
        speculation=speculation,
        long_prefill_token_threshold=threshold,
        enable_prefix_caching=config.enable_prefix_caching or bool(config.kv_groups),
        offload=OffloadConfig(num_blocks, block_us),
    )
    return replace(workload, config=config)
