"""What a CPU tier of the KV cache did during a run."""

from dataclasses import dataclass

from engine.core import Engine
from engine.kv_cache.tiered_cache import TieredKVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTierFigures:
    """Blocks that the tier took, threw out and gave back, the last also within a millisecond."""

    num_stored: int
    num_evicted: int
    num_fetched: int
    num_thrashed: int
    thrashing_rate: float


def cpu_tier_figures(engine: Engine) -> CpuTierFigures | None:
    """Those of a finished run; None for an engine without a tier."""
    kv = engine.kv
    if not isinstance(kv, TieredKVCache):
        return None
    return CpuTierFigures(
        num_stored=kv.tier.num_stored,
        num_evicted=kv.tier.num_evicted,
        num_fetched=kv.tier.num_fetched,
        num_thrashed=kv.tier.num_thrashed,
        thrashing_rate=kv.thrashing_rate,
    )
