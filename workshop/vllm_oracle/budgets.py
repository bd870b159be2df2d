"""Random limits of a step that few deployments set, laid over the settings of a workload."""

from dataclasses import replace

import numpy as np

from workshop.vllm_oracle.workload import Workload


def with_budgets(workload: Workload, seed: int) -> Workload:
    """Return the workload with fewer scheduled tokens than a step has room for, and an adaptive threshold."""
    generator = np.random.default_rng((seed, 3))
    config = workload.config
    width = 1 + config.speculation.num_tokens if config.speculation is not None else 1
    least = width if config.enable_chunked_prefill else config.max_model_len
    scheduled = max(least, int(config.max_num_batched_tokens * generator.choice([0.3, 0.6, 1.0, 2.0])))
    takes_rows = config.speculation is not None and config.speculation.rows_per_request
    return replace(
        workload,
        config=replace(
            config,
            max_num_scheduled_tokens=0 if takes_rows else scheduled,
            long_prefill_token_threshold=max(width, int(generator.choice([1, 7, 16, 40]))),
            long_prefill_token_threshold_adaptive=bool(generator.random() < 0.8),
        ),
    )
