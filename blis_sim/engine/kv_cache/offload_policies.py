"""When blocks of the KV cache go to CPU memory and when they return. A new policy is one class and one row here."""

from collections.abc import Callable

from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.kv_cache.mirroring import MirroringKVCache
from blis_sim.engine.kv_cache.offloading import OffloadingKVCache
from blis_sim.engine.kv_cache.tiered_cache import TieredKVCache

OFFLOAD_POLICIES: dict[str, Callable[[int, int, CpuTierConfig], TieredKVCache]] = {
    "mirror": MirroringKVCache,
    "threshold": OffloadingKVCache,
}
