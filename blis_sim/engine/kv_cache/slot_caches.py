"""The KV cache of a deployment with vLLM's rules, by what its layers keep and what drafts for it."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.block_pool import CohortCache, SlotCache
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.kv_cache.vllm_cache import CountingKVCache, VllmKVCache


def new_cohort_cache(config: EngineConfig) -> CohortCache:
    """Return a cache that counts blocks that no other request may find."""
    if config.kv_groups:
        from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache  # other models do without its managers

        return GroupedKVCache(config, counts=True)
    return CountingKVCache(config)


def new_slot_cache(config: EngineConfig, changes: list[CacheChange] | None = None) -> SlotCache:
    """Return a cache that has every block. `changes` receives what happens to the content."""
    if config.kv_groups or config.offload is not None:
        from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache

        return GroupedKVCache(config, changes)
    if config.speculation is not None:
        from blis_sim.engine.kv_cache.grouped_cache import NextTokenKVCache

        return NextTokenKVCache(config, config.speculation, changes)
    return VllmKVCache(config, changes)
