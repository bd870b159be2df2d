"""Groups of layers that keep every token of a request: full attention, and latent attention with its indexes."""

from blis_sim.engine.kv_cache.block_table import BlockTable
from blis_sim.engine.kv_cache.single_type_manager import Hit, SingleTypeManager
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence


class FullAttentionManager(SingleTypeManager):
    """Full attention: no block is given back before the end, and a hit is all blocks from the first on that can be
    found."""

    __slots__ = ()

    def find(self, content: BlockIdentities, max_tokens: int, groups: list[int], drops_last_block: bool) -> Hit:
        size, scale, alignment = self.block_tokens, self.hashes_per_block, self.settings.alignment_tokens
        found: list[list[int]] = [[] for _ in groups]
        tokens = 0
        for index in range(max_tokens // size):
            blocks = self.blocks.find(groups, content.identity((index + 1) * scale - 1))
            if blocks is None:
                break
            for each, block in zip(found, blocks, strict=True):
                each.append(block)
            tokens += size
        if drops_last_block and tokens:
            tokens -= min(alignment, size)
        tokens -= tokens % alignment
        for each in found:
            del each[-(-tokens // size) :]
        return Hit(found, tokens)

    def cache(
        self, sequence: Sequence, table: BlockTable, num_tokens: int, num_known: int, boundaries: list[int]
    ) -> int | None:
        super().cache(sequence, table, num_tokens, num_known, boundaries)
        return self._cache_tail(sequence, table, min(num_tokens, num_known)) if self.hashes_per_block > 1 else None

    def decode(self, sequence: Sequence, table: BlockTable, context: int, processed: int, lag: int) -> int:
        blocks, size = table.blocks, self.block_tokens
        if context >= len(blocks) * size:
            blocks.append(self.blocks.take_one())
        return len(blocks) * size

    def _cache_tail(self, sequence: Sequence, table: BlockTable, num_tokens: int) -> int | None:
        """Keep the block in which the prompt ends as one with content, though no hit ends inside of a block.

        Returns the identity by which it is kept; None where no block is kept.
        """
        unit = self.settings.hash_tokens
        tail_tokens = (sequence.request.input_tokens - (not self.settings.drops_last_block)) // unit * unit
        index = tail_tokens // self.block_tokens
        if tail_tokens == 0 or tail_tokens > num_tokens or tail_tokens % self.block_tokens == 0:
            return None
        if index >= len(table.blocks):
            return None
        identity, block = tail_tokens // unit - 1, table.blocks[index]
        if index < table.num_cached:
            is_new = self.blocks.reports_part(self.group, block, sequence.request.blocks.identity(identity))
            return identity if is_new else None
        if self.blocks.is_cached(self.group, block):
            return None
        self.blocks.cache_part(self.group, sequence, table.blocks, index, identity)
        return identity
