"""Counts of tokens where steps produce several."""

from blis_sim.engine.sequence import ExtraTokens, Sequence
from tests.fakes import request


def test_extra_tokens_count_from_the_step_that_brought_them() -> None:
    extra = ExtraTokens()
    extra.add(3, 2)
    extra.add(7, 1)
    assert [extra.until(step) for step in (0, 2, 3, 4, 6, 7, 99)] == [0, 0, 2, 2, 2, 3, 3]
    assert extra.total == 3


def test_no_extra_tokens_are_counted_before_the_first() -> None:
    extra = ExtraTokens()
    assert (extra.until(5), extra.total) == (0, 0)


def test_a_sequence_counts_extra_tokens_with_its_other_tokens() -> None:
    sequence = Sequence(request(), 0)
    sequence.first_token_step = 2
    sequence.add_token_steps(3, 3)
    sequence.add_extra_tokens(4, 2)
    assert [sequence.tokens_at(step) for step in (1, 2, 3, 4, 5, 9)] == [0, 1, 2, 5, 6, 6]
    assert sequence.num_decoded_tokens == 5
