"""The managers of groups by kind of their caches. A new kind is one file and one row."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from blis_sim.engine.errors import EngineError
from blis_sim.engine.kv_cache.chunked_local_manager import ChunkedLocalManager
from blis_sim.engine.kv_cache.full_attention_manager import FullAttentionManager
from blis_sim.engine.kv_cache.kv_blocks import KVBlocks
from blis_sim.engine.kv_cache.mamba_manager import MambaManager
from blis_sim.engine.kv_cache.single_type_manager import GroupSettings, SingleTypeManager
from blis_sim.engine.kv_cache.sliding_window_manager import SlidingWindowManager
from blis_sim.engine.memory.kv_group_specs import KVCacheGroupSpec
from blis_sim.engine.memory.kv_specs import CHUNKED, FULL, LATENT, MIXED, SLIDING, STATE

NewManager: TypeAlias = Callable[[KVCacheGroupSpec, int, KVBlocks, GroupSettings], SingleTypeManager]

MANAGERS: Mapping[str, NewManager] = {
    FULL: FullAttentionManager,
    LATENT: FullAttentionManager,
    MIXED: FullAttentionManager,
    SLIDING: SlidingWindowManager,
    CHUNKED: ChunkedLocalManager,
    STATE: MambaManager,
}
"""By the name of vLLM's specification."""


def new_manager(spec: KVCacheGroupSpec, group: int, blocks: KVBlocks, settings: GroupSettings) -> SingleTypeManager:
    """Return the manager of a group. Raises EngineError for a kind without one."""
    if spec.kind not in MANAGERS:
        raise EngineError(f"a KV cache group must be one of {', '.join(MANAGERS)}, got {spec.kind}")
    return MANAGERS[spec.kind](spec, group, blocks, settings)
