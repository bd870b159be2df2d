"""vLLM's KV cache under a drafter that reads one token ahead: its KV of a block depends on the token after it."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.changes import CacheChange
from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.speculation import Speculation


class NextTokenKVCache(VllmKVCache):
    """Blocks are named by the token after them, too, so one is findable only once that token exists.

    The identities of a request are expected to be names of that kind. With names of the plain kind, the last block
    found is computed anew instead. Facts: vllm/config/vllm.py `num_hash_lookahead_tokens`,
    vllm/v1/core/single_type_kv_cache_manager.py `find_longest_cache_hit`.
    """

    __slots__ = ("_drops_last_hit", "_hash_lookahead_tokens")

    def __init__(
        self, config: EngineConfig, speculation: Speculation, changes: list[CacheChange] | None = None
    ) -> None:
        super().__init__(config, changes)
        self._drops_last_hit = speculation.drops_last_hit_block
        self._hash_lookahead_tokens = speculation.num_hash_lookahead_tokens

    def find_prefix(self, sequence: Sequence) -> list[int]:
        found = super().find_prefix(sequence)
        if self._drops_last_hit and found:
            found.pop()
        return found

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        super().register(sequence, min(num_tokens, sequence.num_tokens - self._hash_lookahead_tokens))
