"""Groups of layers that see a window of the latest tokens: what is before it is given back."""

from blis_sim.engine.kv_cache.block_table import NULL, BlockTable
from blis_sim.engine.kv_cache.single_type_manager import Hit, SingleTypeManager
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence


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

    def reachable(self, first: int, end: int, boundaries: list[int]) -> list[tuple[int, int]]:
        size, alignment, drops = self.block_tokens, self.settings.alignment_tokens, self.settings.drops_last_block
        needed = self._num_window_blocks(drops)
        ranges: list[tuple[int, int]] = []
        for boundary in sorted(boundaries):
            stop = boundary // alignment * alignment // size + drops
            start = max(stop - needed, ranges[-1][1] if ranges else first)
            if start < min(stop, end):
                ranges.append((start, min(stop, end)))
        return ranges

    def skipped_tokens(self, computed_tokens: int) -> int:
        return max(0, computed_tokens - self.spec.reach_tokens + 1)

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        blocks, size, before = table.blocks, self.block_tokens, self.spec.reach_tokens - 1
        end = max(0, processed - before) // size
        if end and blocks[end - 1] != NULL:
            first = end - 1
            while first and blocks[first - 1] != NULL:
                first -= 1
            self.blocks.retire(self.group, sequence, table, first, end)
        if context >= len(blocks) * size:
            blocks.append(self.blocks.take_one())
        return min(len(blocks) * size, (end + 1) * size + before + lag)

    def admission_cap(self) -> int:
        settings = self.settings
        held = min(self.spec.reach_tokens - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        return -(-held // self.block_tokens) + 1

    def _num_window_blocks(self, drops_last_block: bool) -> int:
        return -(-(self.spec.reach_tokens - 1) // self.block_tokens) + drops_last_block
