"""Blocks for a request's tokens: how many, which ones, and all or nothing."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.kv_cache.blis_cache import KVCache
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.sequence import Sequence
from tests.engine.kv_cache.reuse import order_of_reuse
from tests.examples import examples
from tests.fakes import request

SIZE = 4


def sequence(request_id: str = "a", input_tokens: int = 10, group: str = "", shared_blocks: int = 0) -> Sequence:
    blocks = PrefixGroupBlocks(request_id, group, shared_blocks) if group else None
    return Sequence(request(request_id, input_tokens, blocks=blocks), 0)


def filled(cache: KVCache, each: Sequence, num_tokens: int | None = None) -> Sequence:
    """The sequence with its prompt, or the beginning of it, in the cache."""
    assert cache.allocate_prompt(each, each.request.input_tokens if num_tokens is None else num_tokens)
    return each


def state(cache: KVCache, sequences: list[Sequence]) -> object:
    """All that can be seen of a cache and its sequences from outside."""
    found = [cache.cached_prefix(each) for each in sequences]
    held = [(list(each.block_ids), each.num_stored_tokens) for each in sequences]
    return order_of_reuse(cache.pool), found, held, cache.num_hit_blocks, cache.num_missed_blocks, len(cache.index)


def test_a_prompt_takes_as_many_blocks_as_its_tokens_fill() -> None:
    cache = KVCache(10, SIZE)
    assert filled(cache, sequence(input_tokens=9)).block_ids == [0, 1, 2]


def test_the_next_chunk_fills_the_last_block_before_it_takes_another() -> None:
    cache = KVCache(10, SIZE)
    each = filled(cache, sequence(input_tokens=10), 6)
    assert cache.allocate_prompt(each, 2)
    assert each.block_ids == [0, 1]
    assert cache.allocate_prompt(each, 2)
    assert each.block_ids == [0, 1, 2]
    assert each.num_stored_tokens == 10


def test_a_generated_token_takes_a_block_only_when_the_last_one_is_full() -> None:
    cache = KVCache(10, SIZE)
    each = filled(cache, sequence(input_tokens=7))
    assert [cache.allocate_token(each), len(each.block_ids)] == [True, 2]
    assert [cache.allocate_token(each), len(each.block_ids)] == [True, 3]


def test_a_prompt_that_fits_exactly_is_let_in() -> None:
    cache = KVCache(2, SIZE)
    filled(cache, sequence(input_tokens=8))
    assert cache.pool.num_free == 0


def test_released_blocks_are_reused_from_the_end_of_the_sequence() -> None:
    cache = KVCache(3, SIZE)
    cache.release(filled(cache, sequence(input_tokens=12)))
    assert order_of_reuse(cache.pool) == [2, 1, 0]


def test_full_blocks_of_a_prompt_stay_findable_after_release() -> None:
    cache = KVCache(10, SIZE)
    cache.release(filled(cache, sequence("a", 10, "g", 2)))
    assert cache.cached_prefix(sequence("b", 10, "g", 2)) == [0, 1]


def test_a_partly_filled_block_is_not_findable() -> None:
    cache = KVCache(10, SIZE)
    filled(cache, sequence("a", 8, "g", 2), 7)
    assert cache.cached_prefix(sequence("b", 8, "g", 2)) == [0]


def test_a_block_that_later_chunks_fill_up_becomes_findable() -> None:
    cache = KVCache(10, SIZE)
    each = filled(cache, sequence("a", 8, "g", 2), 7)
    cache.allocate_prompt(each, 1)
    assert cache.cached_prefix(sequence("b", 8, "g", 2)) == [0, 1]


def test_a_block_that_generated_tokens_fill_up_becomes_findable() -> None:
    cache = KVCache(10, SIZE)
    each = filled(cache, sequence("a", 6, "g", 2))
    for _ in range(2):
        cache.allocate_token(each)
    assert cache.cached_prefix(sequence("b", 8, "g", 2)) == [0, 1]


def test_a_reused_block_is_no_longer_found() -> None:
    cache = KVCache(2, SIZE)
    cache.release(filled(cache, sequence("a", 8, "g", 2)))
    filled(cache, sequence("c", input_tokens=4))
    assert cache.cached_prefix(sequence("b", 8, "g", 2)) == [0], "the end of a sequence goes first"


def test_a_cached_prefix_is_claimed_instead_of_filled() -> None:
    cache = KVCache(10, SIZE)
    filled(cache, sequence("a", 10, "g", 2))
    other = sequence("b", 10, "g", 2)
    assert cache.allocate_prompt(other, 2, cache.cached_prefix(other))
    assert other.block_ids == [0, 1, 3]
    assert other.num_stored_tokens == 10


def test_claimed_and_filled_blocks_are_counted() -> None:
    cache = KVCache(10, SIZE)
    filled(cache, sequence("a", 10, "g", 2))
    other = sequence("b", 10, "g", 2)
    cache.allocate_prompt(other, 2, cache.cached_prefix(other))
    for _ in range(3):
        cache.allocate_token(other)
    assert (cache.num_hit_blocks, cache.num_missed_blocks) == (2, 5), "partly filled and generated blocks count too"


def test_a_shared_block_is_released_only_when_its_last_holder_gives_it_back() -> None:
    cache = KVCache(3, SIZE)
    first = filled(cache, sequence("a", 8, "g", 1))
    second = sequence("b", 8, "g", 1)
    cache.allocate_prompt(second, 4, cache.cached_prefix(second))
    cache.release(first)
    assert order_of_reuse(cache.pool) == [1]
    cache.release(second)
    assert order_of_reuse(cache.pool) == [1, 2, 0]


def test_a_prompt_found_whole_claims_none_of_its_blocks() -> None:
    cache = KVCache(4, SIZE)
    cache.release(filled(cache, sequence("a", 8, "g", 2)))
    other = sequence("b", 8, "g", 2)
    assert cache.allocate_prompt(other, 0, cache.cached_prefix(other))
    assert (other.block_ids, cache.num_hit_blocks, cache.pool.num_used) == ([], 0, 0)


def test_blocks_out_of_line_with_their_sequence_are_never_findable() -> None:
    cache = KVCache(4, SIZE)
    each = sequence("a", 8)
    each.blocks_aligned = False
    for _ in range(SIZE):
        cache.allocate_token(each)
    assert len(cache.index) == 0
    assert each.block_ids == [0]


_moves = st.lists(st.tuples(st.sampled_from(["prompt", "token", "release"]), st.integers(0, 3), st.integers(1, 9)))


@settings(max_examples=examples(100), deadline=None)
@given(num_blocks=st.integers(1, 6), moves=_moves)
def test_every_move_does_all_or_nothing_and_no_block_is_lost(
    num_blocks: int, moves: list[tuple[str, int, int]]
) -> None:
    cache = KVCache(num_blocks, SIZE)
    sequences = [sequence(f"r{number}", 20, "g" if number % 2 else "h", number) for number in range(4)]
    for move, number, num_tokens in moves:
        each = sequences[number]
        before = state(cache, sequences)
        if not moved(cache, each, move, num_tokens):
            assert state(cache, sequences) == before
        holders = Counter(block for other in sequences for block in other.block_ids)
        assert sorted([*holders, *order_of_reuse(cache.pool)]) == list(range(num_blocks))
        assert all(len(set(other.block_ids)) == len(other.block_ids) for other in sequences)
        assert all(-(-other.num_stored_tokens // SIZE) == len(other.block_ids) for other in sequences)
        cache.pool.check()


def moved(cache: KVCache, each: Sequence, move: str, num_tokens: int) -> bool:
    """Whether the cache had room for the call."""
    if move == "release":
        cache.release(each)
        return True
    if move == "token":
        return cache.allocate_token(each)
    cached = cache.cached_prefix(each) if not each.block_ids else []
    return cache.allocate_prompt(each, num_tokens, cached)
