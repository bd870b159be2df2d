"""Groups of layers that see a window of the latest tokens: what is before it is given back."""

from collections.abc import Sequence as SequenceOf

from blis_sim.engine.kv_cache.kv_blocks import NULL
from blis_sim.engine.kv_cache.single_type_manager import Hit, SingleTypeManager
from blis_sim.engine.request import BlockIdentities


class SlidingWindowManager(SingleTypeManager):
    """A hit needs the blocks of one window before its end, and only such blocks are made findable."""

    __slots__ = ()

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> Hit:
        size, scale, alignment = self.block_tokens, self.hashes_per_block, self.settings.alignment_tokens
        most, needed = max_tokens // size, self._num_window_blocks(drops_last_block)
        found: list[list[int]] = [[NULL] * most for _ in groups]
        num_in_a_row = end = 0
        for index in range(most - 1, -1, -1):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is None:
                num_in_a_row = 0
                continue
            if num_in_a_row == 0 and (index + (not drops_last_block)) * size % alignment:
                continue
            for each, block in zip(found, blocks, strict=True):
                each[index] = block
            num_in_a_row += 1
            if num_in_a_row >= needed:
                end = index + num_in_a_row
                break
        else:
            end = num_in_a_row
            while end * size % alignment:
                end -= 1
        if drops_last_block and end:
            end -= 1
            while end * size % alignment:
                end -= 1
        for each in found:
            del each[end:]
        return Hit(found, end * size)

    def reachable(self, index: int, boundaries: SequenceOf[int]) -> bool:
        size, alignment = self.block_tokens, self.settings.alignment_tokens
        needed, ahead = self._num_window_blocks(self.settings.drops_last_block), int(self.settings.drops_last_block)
        for boundary in boundaries:
            end = boundary // alignment * alignment // size + ahead
            if end - needed <= index < end:
                return True
        return False

    def skipped_tokens(self, computed_tokens: int) -> int:
        return max(0, computed_tokens - self.spec.reach_tokens + 1)

    def admission_cap(self) -> int:
        settings = self.settings
        held = min(self.spec.reach_tokens - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        return -(-held // self.block_tokens) + 1

    def _num_window_blocks(self, drops_last_block: bool) -> int:
        return -(-(self.spec.reach_tokens - 1) // self.block_tokens) + drops_last_block
