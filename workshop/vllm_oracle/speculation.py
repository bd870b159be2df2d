"""Random settings of speculative decoding, laid over those of a workload."""

from dataclasses import replace

import numpy as np

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.memory.kv_groups import CHUNKED, STATE, capacity_tokens
from blis_sim.engine.speculation import DRAFTERS, Speculation
from workshop.vllm_oracle.workload import Workload

METHODS = [method for method in DRAFTERS if method != "medusa"]
"""Methods whose drafters the genuine scheduler tells apart."""


def with_speculation(workload: Workload, seed: int) -> Workload:
    """The workload with drafts. Where vLLM itself would fail an assertion, its settings give way."""
    generator = np.random.default_rng((seed, 1))
    speculation = _draw(generator, seed)
    return replace(workload, config=_fitting(workload.config, speculation))


def _draw(generator: np.random.Generator, seed: int) -> Speculation:
    method = str(generator.choice(METHODS))
    num_tokens = int(generator.integers(1, 7))
    rates = np.sort(generator.random(num_tokens))[::-1] if generator.random() < 0.8 else np.ones(num_tokens)
    return Speculation(
        method=method,
        num_tokens=num_tokens,
        acceptance_rates=tuple(map(float, rates)),
        seed=seed,
        parallel_drafting=DRAFTERS[method].writes_kv and bool(generator.random() < 0.2),
        hashes_next_token=bool(generator.random() < 0.7),
        keeps_last_hit_block=bool(generator.random() < 0.1),
    )


def _fitting(config: EngineConfig, speculation: Speculation) -> EngineConfig:
    """vLLM fills newcomers that decode up to 1 + K tokens, and asserts that no threshold cuts that."""
    threshold = config.long_prefill_token_threshold
    if 0 < threshold <= speculation.num_tokens:
        if any(group.kind == STATE for group in config.kv_groups):  # whose blocks are those of a cache that is on
            config = replace(config, long_prefill_token_threshold=0)
        else:  # no newcomer decodes when nothing is found in the cache
            config = replace(config, enable_prefix_caching=False)
    # Each draft needs a recurrent state of its own.
    groups = tuple(
        replace(group, states=group.states + speculation.num_tokens) if group.kind == STATE else group
        for group in config.kv_groups
    )
    if any(group.kind == CHUNKED for group in groups) and speculation.drops_last_hit_block:
        speculation = replace(speculation, keeps_last_hit_block=True)  # vLLM asserts that chunks drop none
    num_blocks = config.total_kv_blocks
    while groups and capacity_tokens(groups, num_blocks, config.max_in_flight_tokens) < config.max_model_len:
        num_blocks += 1
    return replace(config, speculation=speculation, kv_groups=groups, total_kv_blocks=num_blocks)
