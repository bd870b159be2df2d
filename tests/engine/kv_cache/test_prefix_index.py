"""Lookup of the beginning of a prompt in blocks that are filled already."""

from dataclasses import dataclass

from blis_sim.engine.kv_cache.block_pool import PrefixIndex
from blis_sim.engine.request import HashedBlocks, PrefixGroupBlocks, UniqueBlocks


@dataclass(frozen=True, slots=True)
class Named:
    """Blocks by the letters of a word."""

    word: str

    @property
    def num_shareable(self) -> int:
        return len(self.word)

    def identity(self, index: int) -> object:
        return self.word[: index + 1]


def index_of(**blocks: int) -> PrefixIndex:
    index = PrefixIndex()
    for identity, block in blocks.items():
        index.register(block, identity)
    return index


def test_the_block_registered_last_is_found() -> None:
    index = index_of(a=3)
    index.register(7, "a")
    assert index.longest_prefix(Named("a"), 1) == [7]
    assert len(index) == 1


def test_forgetting_a_block_loses_its_content_even_where_a_newer_block_holds_it_too() -> None:
    index = index_of(a=3)
    index.register(7, "a")
    index.forget(3)
    assert index.longest_prefix(Named("a"), 1) == []


def test_a_block_can_be_registered_anew_after_it_was_forgotten() -> None:
    index = index_of(a=3)
    index.forget(3)
    index.register(3, "b")
    assert index.longest_prefix(Named("b"), 1) == [3]
    assert index.longest_prefix(Named("a"), 1) == []


def test_requests_of_one_group_name_their_shared_blocks_alike_and_the_rest_apart() -> None:
    one, other = PrefixGroupBlocks("r1", "g", 2), PrefixGroupBlocks("r2", "g", 2)
    assert [one.identity(index) == other.identity(index) for index in range(4)] == [True, True, False, False]


def test_groups_share_nothing_with_each_other() -> None:
    assert PrefixGroupBlocks("r1", "g", 2).identity(0) != PrefixGroupBlocks("r2", "h", 2).identity(0)


def test_unique_blocks_are_found_only_by_the_same_request() -> None:
    assert UniqueBlocks("r1").identity(0) == UniqueBlocks("r1").identity(0)
    assert UniqueBlocks("r1").identity(0) != UniqueBlocks("r2").identity(0)
    assert UniqueBlocks("r1").identity(0) != UniqueBlocks("r1").identity(1)


def test_equal_hashes_are_equal_blocks_and_generated_blocks_are_the_requests_own() -> None:
    one, other = HashedBlocks("r1", (11, 12)), HashedBlocks("r2", (11, 13))
    assert [one.identity(index) == other.identity(index) for index in range(3)] == [True, False, False]


def test_blocks_that_overwrite_each_other_forget_as_one_by_one() -> None:
    """1, 2 and 3 are given to a prompt in this order; what each held is forgotten first, though others hold it."""
    at_once, one_by_one = index_of(ab=1, abc=2, a=3), index_of(ab=1, abc=2, a=3)
    at_once.overwrite(range(7, 10), ["a", "ab", "abc"], [(0, 1), (1, 2), (2, 3)])
    for lost, block, identity in ((1, 7, "a"), (2, 8, "ab"), (3, 9, "abc")):
        one_by_one.forget(lost)
        one_by_one.register(block, identity)
    found = [at_once.block_of(identity) for identity in ("a", "ab", "abc")]
    assert found == [one_by_one.block_of(identity) for identity in ("a", "ab", "abc")] == [None, 8, 9]
