"""When an answer that repeats itself is stopped."""

from collections.abc import Sequence

from mockserve.protocol.asked.sampling import Repetition

STOP_REASON = "repetition_detected"


def first_repetition(token_ids: Sequence[int], wanted: Repetition) -> int | None:
    """How many tokens an answer has when it first ends in a pattern said `wanted.min_count` times in a row.

    None if it never does. Cost: the number of tokens times the number of pattern sizes.
    """
    longest = min(wanted.max_pattern_size, len(token_ids) // wanted.min_count)
    found = (_first_of_size(token_ids, size, wanted.min_count) for size in _sizes(wanted, longest))
    return min((each for each in found if each is not None), default=None)


def _sizes(wanted: Repetition, longest: int) -> range:
    return range(max(1, wanted.min_pattern_size), longest + 1)


def _first_of_size(token_ids: Sequence[int], size: int, min_count: int) -> int | None:
    num_equal = 0
    for index in range(size, len(token_ids)):
        num_equal = num_equal + 1 if token_ids[index] == token_ids[index - size] else 0
        if num_equal >= size * (min_count - 1):
            return index + 1
    return None
