"""The result for leading blocks is the result for each of them, whatever was looked up and has changed before."""

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.kv_cache.block_pool import MAX_CACHED_SEARCHES, ContentIndex
from blis_sim.engine.request import PrefixGroupBlocks

GROUPS = [PrefixGroupBlocks("r0", "a", 3), PrefixGroupBlocks("r1", "a", 6), PrefixGroupBlocks("r2", "b", 4)]

CHANGES = st.one_of(
    st.tuples(st.just("register"), st.integers(0, 5), st.sampled_from(GROUPS), st.integers(0, 5)),
    st.tuples(st.just("register all"), st.integers(0, 5), st.sampled_from(GROUPS), st.integers(0, 5)),
    st.tuples(st.just("forget"), st.integers(0, 5), st.sampled_from(GROUPS), st.integers(0, 5)),
)


def found_one_by_one(index: ContentIndex, blocks: PrefixGroupBlocks, num_blocks: int) -> list[int]:
    found = []
    for place in range(num_blocks):
        block = index.find(blocks.identity(place))
        if block is None:
            break
        found.append(block)
    return found


@given(st.lists(CHANGES, max_size=30))
def test_leading_blocks_are_those_found_one_by_one(changes: list[tuple[str, int, PrefixGroupBlocks, int]]) -> None:
    index = ContentIndex()
    for kind, block, blocks, place in changes:
        index.forget(block)  # a block holds one content
        if kind == "register":
            index.register(block, blocks.identity(place))
        elif kind == "register all":
            index.register_all([block], [blocks.identity(place)])
        for asked in GROUPS:
            for num_blocks in range(1, 7):
                expected = found_one_by_one(index, asked, num_blocks)
                assert index.find_leading(asked, num_blocks) == expected
                assert index.find_leading(asked, num_blocks) == expected


def test_a_caller_may_change_the_list_that_it_gets() -> None:
    index = ContentIndex()
    index.register(7, GROUPS[0].identity(0))
    index.find_leading(GROUPS[0], 1).append(8)
    assert index.find_leading(GROUPS[0], 1) == [7]


def test_answers_stay_right_when_there_are_more_than_are_cached() -> None:
    index = ContentIndex()
    index.register(7, GROUPS[0].identity(0))
    for number in range(MAX_CACHED_SEARCHES + 2):
        assert index.find_leading(PrefixGroupBlocks("r", f"group {number}", 1), 1) == []
    assert index.find_leading(GROUPS[0], 1) == [7]
