"""Groups of layers that share a block table, as vLLM plans them, and the needs of a running KV cache for each."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.kv_specs import CHUNKED, FULL, LATENT, MIXED, SLIDING, STATE, KVSpec

_MAX_LAYER_RATIO = 1.5
"""From this ratio of layers between kinds on, groups are as small as the rarest kind; below it, as large as the
commonest, which wastes fewer pages on padding."""


class KVGroup(NamedTuple):
    """Layers of one block table. `layers` are their numbers; `specs` has one entry for each, equal in most groups."""

    kind: str
    specs: tuple[KVSpec, ...]
    layers: tuple[int, ...]

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.specs[0].block_tokens

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: of one layer where all are equal, of all together where they differ."""
        return sum(spec.page_bytes for spec in self.specs) if self.kind == MIXED else self.specs[0].page_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers of the group."""
        return sum(spec.page_bytes for spec in self.specs)

    def restricted_to(self, layers: range) -> "KVGroup":
        """Return the group with those of its layers that are among `layers`."""
        kept = [(spec, number) for spec, number in zip(self.specs, self.layers, strict=True) if number in layers]
        return KVGroup(self.kind, tuple(spec for spec, _ in kept), tuple(number for _, number in kept))

    def blocks_per_request(self, request: "RequestLimits") -> int:
        """Return the most blocks that one request holds in this group."""
        return max(
            blocks_of(spec.kind, spec.block_tokens, spec.reach_tokens, spec.states, request) for spec in self.specs
        )


class RequestLimits(NamedTuple):
    """The longest request, and how many tokens may be scheduled but not settled at any instant."""

    max_model_len: int
    in_flight_tokens: int


def blocks_of(kind: str, block_tokens: int, reach_tokens: int, states: int, request: RequestLimits) -> int:
    """Return the most blocks that one request holds in a group of such layers."""
    if kind == STATE:
        return states
    if kind == SLIDING:
        held = min(reach_tokens - 1 + request.in_flight_tokens, request.max_model_len)
        return -(-held // block_tokens) + 1
    if kind == CHUNKED:
        held = min(reach_tokens + request.in_flight_tokens, request.max_model_len)
        return -(-held // block_tokens)
    return -(-request.max_model_len // block_tokens)


def longest_request(num_blocks: int, most_tokens: int, blocks_needed: Callable[[int], int]) -> int:
    """Return the tokens, up to `most_tokens`, of the longest request that fits into all blocks but one.

    `blocks_needed` maps the tokens of a request to the blocks that it holds. vLLM keeps one block for itself.
    """
    shortest, longest = 0, most_tokens
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if blocks_needed(middle) < num_blocks:
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def group_layers(specs: Sequence[Sequence[KVSpec]], model: str) -> list[KVGroup]:
    """Return the groups of a model from the caches of its layers.

    One group holds all layers when all are of one kind; else pages are made equally large and every kind is divided
    into groups of equally many layers.
    """
    entries = [(number, spec) for number, layer in enumerate(specs) for spec in layer]
    if not entries:
        return []
    numbers = tuple(number for number, _ in entries)
    flat = tuple(spec for _, spec in entries)
    if len({_without_reach(spec) for spec in {*flat}}) == 1 and _is_one_type(flat):
        return [KVGroup(flat[0].kind, flat, numbers)]
    if _is_one_type(flat):
        return [KVGroup(MIXED, flat, numbers)]
    unified = _equal_pages(flat, model)
    return _even_groups(list(zip(numbers, unified, strict=True)))


def _without_reach(spec: KVSpec) -> KVSpec:
    return spec._replace(reach_tokens=0)


def _is_one_type(specs: Sequence[KVSpec]) -> bool:
    """Return whether all layers need the same slots for a request."""
    if len({spec.block_tokens for spec in specs}) > 1:
        return False
    if all(spec.is_whole_context for spec in specs):
        return True
    if len({spec.kind for spec in specs}) > 1:
        return False
    if specs[0].kind == STATE:
        return len({spec.page_bytes for spec in specs}) == 1
    return len({spec.reach_tokens for spec in specs}) == 1


def _equal_pages(specs: Iterable[KVSpec], model: str) -> list[KVSpec]:
    """Return caches with pages of one size: smaller ones get longer blocks where those fit evenly, else padding."""
    specs = list(specs)
    largest = max(spec.page_bytes for spec in specs)
    return [_with_page(spec, largest, model) for spec in specs]


def _with_page(spec: KVSpec, page: int, model: str) -> KVSpec:
    if spec.page_bytes == page:
        return spec
    if spec.kind != STATE and page % spec.page_bytes == 0:
        return spec._replace(block_tokens=spec.block_tokens * (page // spec.page_bytes))
    if spec.kind == LATENT:
        raise EngineError(
            f"{model}: a page of latent attention has {spec.page_bytes} bytes, which do not divide the {page} bytes "
            "of the largest page, and vLLM cannot pad it"
        )
    return spec._replace(padded_page_bytes=page)


def _even_groups(entries: Sequence[tuple[int, KVSpec]]) -> list[KVGroup]:
    buckets: dict[KVSpec, list[tuple[int, KVSpec]]] = {}
    for number, spec in entries:
        # Full attention layers of one size are one kind whatever else they are.
        key = _without_reach(spec) if spec.kind == FULL else spec
        buckets.setdefault(key, []).append((number, spec))
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < min(counts) * _MAX_LAYER_RATIO else min(counts)
    groups = []
    for bucket in buckets.values():
        num_groups = -(-len(bucket) // size)
        for first in range(num_groups):
            part = bucket[first::num_groups]
            groups.append(
                KVGroup(part[0][1].kind, tuple(spec for _, spec in part), tuple(number for number, _ in part))
            )
    return groups


def block_bytes(groups: Sequence[KVGroup], layers: range) -> int:
    """Return the bytes that one block takes on a GPU with `layers`: those of the largest group there."""
    return max(group.restricted_to(layers).block_bytes for group in groups)


def hit_granularity(groups: Sequence[KVGroup], enable_prefix_caching: bool) -> tuple[int, int]:
    """Return the tokens to which prefix hits are cut, and those of one hash.

    Hits of several groups end where blocks of all of them end; hashes are as fine as the blocks divide evenly, but
    recurrent states are only kept at the ends of their blocks.
    """
    sizes = [group.block_tokens for group in groups]
    scheduled = lcm(*sizes)
    if len(sizes) == 1 or not enable_prefix_caching:
        return scheduled, scheduled
    return scheduled, gcd(*sizes)


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
