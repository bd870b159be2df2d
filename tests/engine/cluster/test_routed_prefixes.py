"""The router's record of the blocks sent to an instance."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.cluster.snapshot import RoutedPrefixes
from blis_sim.engine.request import PrefixGroupBlocks
from tests.engine.cluster.small_clusters import sharing


def test_the_least_recently_sent_block_is_forgotten_first() -> None:
    sent = RoutedPrefixes(capacity_blocks=6)
    first = sharing("a", "g", 3).blocks
    sent.note(first, 4)
    assert sent.num_routed(first, 4) == 3
    sent.note(sharing("b", "h", 2).blocks, 2)
    assert sent.num_routed(first, 4) == 3
    sent.note(sharing("c", "i", 1).blocks, 1)
    assert sent.num_routed(first, 4) == 0, "its first block is gone, so none of it is found"


@given(
    st.lists(st.tuples(st.sampled_from("gh"), st.integers(0, 4), st.integers(0, 6)), max_size=20), st.integers(1, 12)
)
def test_counting_private_blocks_gives_what_naming_each_gives(
    requests: list[tuple[str, int, int]], capacity_blocks: int
) -> None:
    counted, named = RoutedPrefixes(capacity_blocks), _Named(capacity_blocks)
    for number, (group, shared_blocks, num_blocks) in enumerate(requests):
        blocks = PrefixGroupBlocks(f"r{number}", group, shared_blocks)
        assert counted.num_routed(blocks, num_blocks) == named.num_routed(blocks, num_blocks)
        counted.note(blocks, num_blocks)
        named.note(blocks, num_blocks)
        assert len(counted) == len(named.sent)


class _Named:
    """Every block by its name."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity = capacity_blocks
        self.sent: list[object] = []

    def num_routed(self, blocks: PrefixGroupBlocks, num_blocks: int) -> int:
        for index in range(num_blocks):
            if blocks.identity(index) not in self.sent:
                return index
        return num_blocks

    def note(self, blocks: PrefixGroupBlocks, num_blocks: int) -> None:
        for identity in map(blocks.identity, range(num_blocks)):
            if identity in self.sent:
                self.sent.remove(identity)
            self.sent.append(identity)
        self.sent = self.sent[max(0, len(self.sent) - self.capacity) :]
