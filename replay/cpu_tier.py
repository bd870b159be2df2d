"""What a CPU tier did during a run, in words."""

from collections.abc import Iterator

from engine.core import Engine
from engine.kv_cache.tiered_cache import TieredKVCache


def thrashing_rate(engine: Engine) -> float:
    """As the tier defines it; 0 for an engine without one."""
    kv = engine.kv
    return kv.thrashing_rate if isinstance(kv, TieredKVCache) else 0.0


def cpu_tier_notes(engine: Engine) -> Iterator[str]:
    """One line when the engine has a CPU tier. The thrashing rate is named as BLIS's reports name it."""
    kv = engine.kv
    if isinstance(kv, TieredKVCache):
        tier = kv.tier
        yield (
            f"CPU tier: {tier.num_stored} blocks stored, {tier.num_evicted} evicted, {tier.num_fetched} brought back, "
            f"{tier.num_thrashed} of them within 1 ms; KV Thrashing Rate: {kv.thrashing_rate:.4f}"
        )
