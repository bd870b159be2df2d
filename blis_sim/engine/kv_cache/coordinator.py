"""The managers of all groups together: what all of them find, and slots in all of them or in none."""

from dataclasses import dataclass

from blis_sim.engine.kv_cache.kv_blocks import KVBlocks
from blis_sim.engine.kv_cache.managers import new_manager
from blis_sim.engine.kv_cache.single_type_manager import GroupSettings, Needs, SingleTypeManager
from blis_sim.engine.memory.kv_group_specs import KVCacheGroupSpec
from blis_sim.engine.memory.kv_specs import STATE
from blis_sim.engine.sequence import Sequence


@dataclass(slots=True)
class Found:
    """The beginning of a request that all groups hold: its tokens, and the blocks of each group by position.

    Some group may hold more. Then another request has the same beginning, and where that ends is `boundary_tokens`,
    from which a state or a window is worth keeping; 0 without.
    """

    tokens: int
    blocks: list[list[int]]
    boundary_tokens: int


class KVCacheCoordinator:
    """Facts: vllm/v1/core/kv_cache_coordinator.py, `HybridKVCacheCoordinator`; with one group the unitary one."""

    __slots__ = ("_equal", "_is_simple", "blocks", "managers", "settings")

    def __init__(self, groups: tuple[KVCacheGroupSpec, ...], blocks: KVBlocks, settings: GroupSettings) -> None:
        self.blocks = blocks
        self.settings = settings
        self.managers = [new_manager(spec, group, blocks, settings) for group, spec in enumerate(groups)]
        self._equal = _equal_groups(self.managers)
        """Groups of equal layers are looked up together, those that keep every token first."""
        self._is_simple = len(self._equal) == 2 and self.managers[self._equal[0][0]].spec.is_whole_context

    def find(self, sequence: Sequence) -> Found:
        """Return the longest beginning, but for the last token, that all groups hold."""
        length, longest = sequence.num_tokens - 1, 0
        found: list[list[int]] = [[] for _ in self.managers]
        lengths = [-1] * len(self.managers)
        verified: set[int] = set()
        while True:
            current = length
            for place, groups in enumerate(self._equal):
                if self.managers[groups[0]].spec.is_whole_context and lengths[groups[0]] >= 0:
                    current = min(current, lengths[groups[0]])
                else:
                    current = self._find_in(place, sequence, current, verified, found)
                    lengths[groups[0]] = current
                    longest = max(longest, current)
            is_settled = current >= length
            length = min(current, length)
            if is_settled or self._is_simple or len(self.managers) == 1:
                break
        for manager, blocks in zip(self.managers, found, strict=True):
            if manager.spec.is_whole_context:
                del blocks[-(-length // manager.block_tokens) :]
        has_boundary = longest > length and len(self.managers) > 1
        return Found(length, found, longest if has_boundary else 0)

    def _find_in(
        self, place: int, sequence: Sequence, max_tokens: int, verified: set[int], found: list[list[int]]
    ) -> int:
        """Look up equal groups, up to so many tokens. Returns how many all of them hold, and notes the blocks.

        Each place drops the last block once for a length, which `verified` notes.
        """
        groups, settings = self._equal[place], self.settings
        manager = self.managers[groups[0]]
        drops, most = settings.drops_last_block and place not in verified, max_tokens
        if drops and manager.spec.kind != STATE and len(self.managers) > 1:
            num_hashes = (sequence.num_tokens - settings.hash_lookahead_tokens) // settings.hash_tokens
            most = min(max_tokens + manager.block_tokens, num_hashes * settings.hash_tokens)
        hit = manager.find(sequence.request.blocks, most, groups, drops)
        if drops:
            verified.add(place)
        elif hit.tokens < max_tokens:
            verified.clear()
        for group, blocks in zip(groups, hit.blocks, strict=True):
            found[group] = blocks
        return hit.tokens

    def num_cacheable_tokens(self, num_tokens: int, manager: SingleTypeManager) -> int:
        """Return how many of the first `num_tokens` tokens may be made findable: up to where hits can end."""
        if len(self.managers) == 1:
            return num_tokens
        aligned = num_tokens - num_tokens % self.settings.alignment_tokens
        if self.settings.drops_last_block and aligned:
            return min(num_tokens, aligned + manager.block_tokens)
        return aligned

    def replay_boundaries(self, sequence: Sequence, boundary_tokens: int) -> list[int]:
        """Return the positions from which a later request goes on: the ends of the prompt, then of a shared beginning.

        Where the last block of a hit is computed anew, its beginning counts, too.
        """
        num_tokens, unit = sequence.request.input_tokens, self.settings.alignment_tokens
        if not self.settings.drops_last_block:
            return [num_tokens - 1, boundary_tokens] if boundary_tokens else [num_tokens - 1]
        ends = [max((num_tokens - 1) // unit * unit - unit, 0), max(num_tokens // unit * unit - unit, 0)]
        if boundary_tokens:
            ends += [boundary_tokens, boundary_tokens - min(manager.block_tokens for manager in self.managers)]
        return ends


def _equal_groups(managers: list[SingleTypeManager]) -> list[list[int]]:
    by_spec: dict[KVCacheGroupSpec, list[int]] = {}
    for manager in managers:
        by_spec.setdefault(manager.spec, []).append(manager.group)
    return sorted(by_spec.values(), key=lambda groups: not managers[groups[0]].spec.is_whole_context)


def needs_of(sequence: Sequence, computed_tokens: int, tokens: int, main_tokens: int, whole: bool = False) -> Needs:
    """Return what it takes that a request has slots for `tokens` tokens, drafts included."""
    prefill_end = max(sequence.request.input_tokens, sequence.num_tokens - 1)
    return Needs(tokens, main_tokens, computed_tokens, prefill_end, whole)
