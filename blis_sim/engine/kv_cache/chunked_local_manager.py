"""Groups of layers that see the chunk of a fixed number of tokens in which a token lies, up to it."""

from blis_sim.engine.kv_cache.block_table import NULL, BlockTable
from blis_sim.engine.kv_cache.single_type_manager import Hit, SingleTypeManager, next_multiple
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence


class ChunkedLocalManager(SingleTypeManager):
    """Whole chunks before the latest one are given back, and count as found without being looked for."""

    __slots__ = ()

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> Hit:
        size, scale = self.block_tokens, self.hashes_per_block
        start = self.skipped_tokens(max_tokens) // size
        found: list[list[int]] = [[NULL] * start for _ in groups]
        end = start
        for index in range(start, max_tokens // size):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is None:
                break
            for each, block in zip(found, blocks, strict=True):
                each.append(block)
            end += 1
        return Hit(found, end * size)

    def skipped_tokens(self, computed_tokens: int) -> int:
        return computed_tokens // self.spec.reach_tokens * self.spec.reach_tokens

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        reach = self.spec.reach_tokens
        if processed % reach < self.block_tokens:
            self.cache(sequence, table, processed, processed, [])  # what is given back is findable
        next_change = super().decode(sequence, table, context, processed, lag)
        return min(next_change, next_multiple(context - lag, reach) + lag)

    def admission_cap(self) -> int:
        held = min(self.spec.reach_tokens + self.settings.max_in_flight_tokens, self.settings.max_model_len)
        return -(-held // self.block_tokens)
