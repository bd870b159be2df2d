"""Random CPU memory for KV blocks, laid over the settings of a workload."""

from dataclasses import replace

import numpy as np

from blis_sim.engine.offloading import Device, OffloadConfig
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


def with_tiers(workload: Workload, seed: int) -> Workload:
    """Return a workload that has CPU memory, with one or two devices behind it, slow or fast, narrow or wide."""
    generator = np.random.default_rng((seed, 7))
    offload = workload.config.offload
    assert offload is not None
    block_us = TICK_US * float(generator.choice([0.0, 0.1, 0.5, 2.0, 8.0]))
    devices = tuple(
        Device(
            read_bytes_us=1.0,
            write_bytes_us=float(generator.choice([0.5, 1.0])),
            base_us=int(generator.integers(0, TICK_US)),
            num_readers=int(generator.integers(1, 4)),
            num_writers=int(generator.integers(1, 4)),
            saturation_depth=int(generator.choice([1, 1, 4])),
            single_fraction=0.5,
            jitter_stdev=float(generator.choice([0.0, 0.2])),
        )
        for _ in range(int(generator.integers(1, 3)))
    )
    config = replace(workload.config, offload=replace(offload, stored_bytes=block_us, devices=devices, seed=seed))
    return replace(workload, config=config)
