"""Random groups of KV caches, laid over the settings of a workload, by kind of model."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.memory.kv_groups import (
    CHUNKED,
    FULL,
    LATENT,
    SLIDING,
    STATE,
    KVCacheGroupSpec,
    capacity_tokens,
    hash_block_tokens,
    is_single_context,
)
from workshop.vllm_oracle.workload import Workload

Groups = tuple[KVCacheGroupSpec, ...]


def with_groups(workload: Workload, seed: int, kind: str) -> Workload:
    """Return the workload on a model of that kind, with as many blocks as its longest request needs at least."""
    generator = np.random.default_rng((seed, 2))
    config = workload.config
    groups = KINDS[kind](generator, config)
    size = hash_block_tokens(groups, config.enable_prefix_caching)
    if is_single_context(groups):
        return replace(workload, config=replace(config, block_size_tokens=size, kv_groups=()))
    num_blocks = config.total_kv_blocks
    while capacity_tokens(groups, num_blocks, config.max_in_flight_tokens) < config.max_model_len:
        num_blocks += 1
    if generator.random() < 0.5:
        num_blocks += int(generator.integers(0, 60))
    config = replace(config, total_kv_blocks=num_blocks, block_size_tokens=size, kv_groups=groups)
    return replace(workload, config=config)


def _full(generator: np.random.Generator, config: EngineConfig) -> Groups:
    return (KVCacheGroupSpec(FULL, config.block_size_tokens),)


def _latent(generator: np.random.Generator, config: EngineConfig) -> Groups:
    """Latent attention, alone or beside states."""
    if generator.random() < 0.6:
        return (KVCacheGroupSpec(LATENT, config.block_size_tokens),)
    return tuple(replace(group, kind=LATENT) if group.kind == FULL else group for group in _states(generator, config))


def _windows(generator: np.random.Generator, config: EngineConfig) -> Groups:
    """One width or two, with or without layers that keep every token, whose blocks may be twice as long."""
    widths = [int(width) for width in generator.integers(1, 180, size=int(generator.choice([1, 1, 2])))]
    groups = [
        KVCacheGroupSpec(SLIDING, 16, width, layers=(width,))
        for width in widths
        for _ in range(int(generator.choice([1, 1, 2, 3])))
    ]
    if generator.random() < 0.85:
        full = KVCacheGroupSpec(FULL, int(generator.choice([16, 16, 32])))
        groups.insert(0 if generator.random() < 0.5 else len(groups), full)
    return tuple(groups)


def _chunks(generator: np.random.Generator, config: EngineConfig) -> Groups:
    chunk = int(generator.choice([16, 32, 48, 128, 100]))
    groups = [KVCacheGroupSpec(CHUNKED, 16, chunk) for _ in range(int(generator.choice([1, 2, 3])))]
    return (*groups, KVCacheGroupSpec(FULL, 16))


def _states(generator: np.random.Generator, config: EngineConfig) -> Groups:
    size = int(generator.choice([16, 32, 48, 64]))
    checkpoint = int(generator.choice([0, 1, 16, size])) if config.enable_prefix_caching else 0
    state = KVCacheGroupSpec(
        STATE,
        size if config.enable_prefix_caching else config.max_model_len,
        checkpoint_tokens=checkpoint,
        states=(3 if checkpoint else 2) if config.enable_prefix_caching else 1,
    )
    groups = [state] * int(generator.choice([1, 2, 3]))
    return (*groups, KVCacheGroupSpec(FULL, size))


KINDS: Mapping[str, Callable[[np.random.Generator, EngineConfig], Groups]] = {
    "full": _full,
    "latent": _latent,
    "windows": _windows,
    "chunks": _chunks,
    "states": _states,
}
"""Kinds of models by what their layers keep."""
