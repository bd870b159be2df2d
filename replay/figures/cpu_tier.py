"""What a CPU tier of the KV cache did during a run."""

from collections.abc import Iterable
from dataclasses import dataclass

from blis_sim.engine.core import Engine
from blis_sim.engine.kv_cache.tiered_cache import TieredKVCache
from blis_sim.options.addition import added_up


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTierFigures:
    """Blocks that the tier took, threw out and gave back, the last also within a millisecond."""

    num_stored: int
    num_evicted: int
    num_fetched: int
    num_thrashed: int
    thrashing_rate: float


def cpu_tier_figures(engines: Iterable[Engine]) -> CpuTierFigures | None:
    """Those of a finished run, of all instances together; None without a tier. Rates are means."""
    caches = [kv for engine in engines if isinstance(kv := engine.kv, TieredKVCache)]
    if not caches:
        return None
    return CpuTierFigures(
        num_stored=sum(kv.tier.num_stored for kv in caches),
        num_evicted=sum(kv.tier.num_evicted for kv in caches),
        num_fetched=sum(kv.tier.num_fetched for kv in caches),
        num_thrashed=sum(kv.tier.num_thrashed for kv in caches),
        thrashing_rate=added_up(kv.thrashing_rate for kv in caches) / len(caches),
    )
