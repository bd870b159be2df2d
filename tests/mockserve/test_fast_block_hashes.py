"""Equal beginnings have equal names, whatever differs later does not, and names are the same in every process."""

from hypothesis import given
from hypothesis import strategies as st

from mockserve.kv_events.naming import block_hashes, token_digest

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=60)


@given(tokens, tokens, st.integers(1, 8))
def test_blocks_are_equal_exactly_as_far_as_the_tokens_are(first: list[int], second: list[int], size: int) -> None:
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    pairs = zip(block_hashes(first, size), block_hashes(second, size), strict=False)
    assert [left == right for left, right in pairs] == [
        index < shared // size for index in range(min(len(first), len(second)) // size)
    ]


@given(tokens, tokens, st.integers(1, 8), st.integers(1, 3))
def test_with_lookahead_the_tokens_after_a_block_must_be_equal_too(
    first: list[int], second: list[int], size: int, ahead: int
) -> None:
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    names = [block_hashes(ids, size, lookahead_tokens=ahead) for ids in (first, second)]
    assert [len(each) for each in names] == [max(0, len(ids) - ahead) // size for ids in (first, second)]
    assert [left == right for left, right in zip(*names, strict=False)] == [
        index < max(0, shared - ahead) // size for index in range(min(map(len, names)))
    ]


@given(tokens, st.integers(1, 8))
def test_only_full_blocks_have_names(ids: list[int], size: int) -> None:
    hashes = block_hashes(ids, size)
    assert len(hashes) == len(ids) // size
    assert len(set(hashes)) == len(hashes)


def test_a_salt_changes_every_name() -> None:
    ids = list(range(64))
    assert not set(block_hashes(ids, 16)) & set(block_hashes(ids, 16, "salt"))


def test_names_are_fixed() -> None:
    assert block_hashes([1, 2, 3, 4], 2) == block_hashes([1, 2, 3, 4, 5], 2)
    assert block_hashes([1, 2], 2) == (16_575_463_538_019_919_403,)
    assert token_digest([1, 2]) == block_hashes([1, 2], 2)[0]
