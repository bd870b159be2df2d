"""Groups of layers that see the chunk of a fixed number of tokens in which a token lies, up to it."""

from blis_sim.engine.kv_cache.kv_blocks import NULL
from blis_sim.engine.kv_cache.single_type_manager import Hit, SingleTypeManager
from blis_sim.engine.request import BlockIdentities


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

    def admission_cap(self) -> int:
        held = min(self.spec.reach_tokens + self.settings.max_in_flight_tokens, self.settings.max_model_len)
        return -(-held // self.block_tokens)
