"""Needs of a running KV cache for each group of layers: kind, block, reach, and where states can be kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm

from blis_sim.engine.memory.kv_groups import KVGroup, RequestLimits, blocks_of, longest_request
from blis_sim.engine.memory.kv_specs import CHUNKED, FULL, LATENT, MIXED, SLIDING, STATE

_WHOLE_CONTEXT = (FULL, LATENT, MIXED)


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """One block table of every request. `kind` is the name of vLLM's specification.

    `reach_tokens` is the width of a sliding window or of a chunk. A state is kept inside of a prefill chunk where its
    distance from the start of the chunk is a multiple of `checkpoint_tokens`; with 0, at the ends of chunks alone. A
    request holds up to `states` of them. `layers` distinguishes groups of equal size whose layers differ.
    """

    kind: str
    block_tokens: int
    reach_tokens: int = 0
    checkpoint_tokens: int = 0
    states: int = 1
    layers: tuple[int, ...] = ()

    @property
    def is_whole_context(self) -> bool:
        """Whether blocks are kept for every token of a request."""
        return self.kind in _WHOLE_CONTEXT


def group_specs(groups: Sequence[KVGroup]) -> tuple[KVCacheGroupSpec, ...]:
    """Return what a running cache needs of planned groups."""
    return tuple(
        KVCacheGroupSpec(
            group.kind,
            group.block_tokens,
            group.specs[0].reach_tokens if group.kind not in _WHOLE_CONTEXT else 0,
            group.specs[0].checkpoint_tokens,
            group.specs[0].states,
            group.specs[0].identity,
        )
        for group in groups
    )


def is_single_context(groups: Sequence[KVCacheGroupSpec]) -> bool:
    """Return whether all layers keep every token in one block table, or nothing is said of groups."""
    return not groups or (len(groups) == 1 and groups[0].is_whole_context)


def hash_block_tokens(groups: Sequence[KVCacheGroupSpec], enable_prefix_caching: bool) -> int:
    """Return the tokens of one identity of a prompt's content; without prefix caching those of attention's block."""
    sizes = [group.block_tokens for group in groups]
    if enable_prefix_caching:
        return gcd(*sizes)
    return min((group.block_tokens for group in groups if group.kind != STATE), default=min(sizes))


def most_blocks(groups: Sequence[KVCacheGroupSpec], num_tokens: int, in_flight_tokens: int) -> int:
    """Return the most blocks that a request of up to `num_tokens` tokens ever holds."""
    limits = RequestLimits(num_tokens, in_flight_tokens)
    return sum(blocks_of(group.kind, group.block_tokens, group.reach_tokens, group.states, limits) for group in groups)


def capacity_tokens(groups: Sequence[KVCacheGroupSpec], num_blocks: int, in_flight_tokens: int) -> int:
    """Return the tokens of the longest request that fits into all blocks but one."""
    most = num_blocks * max(group.block_tokens for group in groups)
    return longest_request(num_blocks, most, lambda tokens: most_blocks(groups, tokens, in_flight_tokens))


def blocks_after(groups: Sequence[KVCacheGroupSpec], num_tokens: int) -> int:
    """Return the blocks that a request holds once `num_tokens` tokens are computed, without one for the next token."""
    return sum(_blocks_after(group, num_tokens) for group in groups)


def _blocks_after(group: KVCacheGroupSpec, num_tokens: int) -> int:
    if group.kind == STATE:
        return 1
    first = 0
    if group.kind == SLIDING:
        first = max(0, num_tokens - group.reach_tokens + 1)
    if group.kind == CHUNKED:
        first = num_tokens // group.reach_tokens * group.reach_tokens
    return -(-num_tokens // group.block_tokens) - first // group.block_tokens


def scheduler_block_tokens(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Return the tokens of which hits are multiples: where blocks of all groups end."""
    return lcm(*(group.block_tokens for group in groups))
