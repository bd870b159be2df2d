"""Where chunks of a prefill end in a model with recurrent states: at the ends of blocks, so that states can be kept.

Facts: vllm/v1/core/sched/scheduler.py, `_mamba_block_aligned_split`.
"""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.mamba_manager import checkpoint_position, is_checkpoint_valid
from blis_sim.engine.memory.kv_group_specs import scheduler_block_tokens
from blis_sim.engine.memory.kv_specs import STATE
from blis_sim.engine.sequence import Sequence


class StateSplit:
    """Shortens chunks. With kernels that keep states inside of a chunk, the last chunk of a prefill is left whole."""

    __slots__ = ("_block_tokens", "_checkpoint_tokens", "_drops", "_hash_tokens", "_lookahead", "_unit")

    def __init__(self, config: EngineConfig) -> None:
        states = [group for group in config.kv_groups if group.kind == STATE]
        others = [group.block_tokens for group in config.kv_groups if group.kind != STATE]
        self._block_tokens = min(others, default=states[0].block_tokens)
        self._unit = scheduler_block_tokens(config.kv_groups)
        self._hash_tokens = config.block_size_tokens
        can_keep = all(group.checkpoint_tokens for group in states)
        self._checkpoint_tokens = states[0].checkpoint_tokens if can_keep else 0
        self._drops = config.speculation.drops_last_hit_block if config.speculation else False
        self._lookahead = config.num_hash_lookahead_tokens

    def num_tokens(self, sequence: Sequence, start: int, num_tokens: int, boundary: int, most: int) -> int:
        """Return how many of the next `num_tokens` tokens after the first `start` make a chunk; 0 where it must wait.

        `boundary` is the end of a beginning shared with others, 0 without. No chunk has more than `most` tokens.
        """
        size, end = self._block_tokens, start + num_tokens
        prefill_end = max(sequence.request.input_tokens, sequence.num_tokens - 1)
        if start >= prefill_end:
            return num_tokens
        position = checkpoint_position(prefill_end, self._unit, self._drops, self._lookahead)
        keeps_inside = end >= prefill_end and is_checkpoint_valid(
            start, end, position, self._hash_tokens, size, self._checkpoint_tokens
        )
        last = 0 if keeps_inside else checkpoint_position(sequence.num_tokens, size, self._drops, self._lookahead)
        if end < prefill_end and (end // size * size > start or size <= most):
            end = end // size * size
        stops = [last]
        if start % size and not keeps_inside:
            stops.append((start // size + 1) * size)
        if start < boundary < end:
            stops.append(start + (boundary - start) // size * size)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)


def new_state_split(config: EngineConfig) -> StateSplit | None:
    """Return how chunks are shortened; None without recurrent states, and where none of them is kept."""
    if not config.enable_prefix_caching or all(group.kind != STATE for group in config.kv_groups):
        return None
    return StateSplit(config)
