"""A sequence derives its token numbers from the steps that produced them."""

import pytest

from blis_sim.engine.sequence import Outcome, Sequence
from tests.fakes import request


def decoding(first_token_step: int, runs: list[list[int]]) -> Sequence:
    sequence = Sequence(request(), arrived_at=0)
    sequence.first_token_step = first_token_step
    sequence.token_runs = runs
    return sequence


@pytest.mark.parametrize(("step", "tokens"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 3), (7, 4), (8, 5), (99, 5)])
def test_tokens_are_counted_up_to_any_step_even_over_gaps(step: int, tokens: int) -> None:
    assert decoding(2, [[3, 2], [7, 2]]).tokens_at(step) == tokens


def test_a_sequence_that_never_finished_its_prompt_has_no_tokens() -> None:
    assert Sequence(request(), 0).tokens_at(10) == 0


def test_decoded_tokens_are_those_after_the_first() -> None:
    assert decoding(2, [[3, 2], [7, 2]]).num_decoded_tokens == 4


def test_a_preempted_sequence_starts_over_from_its_prompt() -> None:
    sequence = decoding(2, [[3, 2]])
    sequence.num_computed_tokens = 12
    sequence.running = True
    sequence.restart()
    assert sequence.num_computed_tokens == 0
    assert not sequence.running
    assert sequence.first_token_step is None
    assert sequence.num_decoded_tokens == 0
    assert sequence.num_preemptions == 1


def test_tokens_produced_before_a_preemption_stay_assigned_to_their_steps() -> None:
    sequence = decoding(2, [[3, 2]])
    sequence.restart()
    sequence.first_token_step = 9
    sequence.token_runs = [[10, 1]]
    assert [sequence.tokens_at(step) for step in (1, 2, 3, 4, 8, 9, 10)] == [0, 1, 2, 3, 3, 1, 2]


def test_the_latest_of_several_preemptions_before_a_step_counts() -> None:
    sequence = decoding(2, [[3, 2]])
    sequence.restart()
    sequence.first_token_step = 9
    sequence.restart()
    sequence.first_token_step = 14
    assert [sequence.tokens_at(step) for step in (4, 8, 9, 13, 14)] == [3, 3, 1, 1, 1]


def test_a_preemption_before_the_first_token_leaves_no_token_behind() -> None:
    sequence = Sequence(request(), 0)
    sequence.restart()
    sequence.first_token_step = 4
    assert [sequence.tokens_at(step) for step in (3, 4)] == [0, 1]


def test_the_first_token_time_survives_a_preemption() -> None:
    sequence = decoding(2, [])
    sequence.first_token_at = 700
    sequence.restart()
    assert sequence.first_token_at == 700


def test_the_repr_of_a_sequence_shows_its_state() -> None:
    sequence = Sequence(request("r1"), 0)
    assert "'r1', waiting" in repr(sequence)
    sequence.running = True
    assert "'r1', running" in repr(sequence)
    sequence.outcome = Outcome.TIMED_OUT
    assert "'r1', timed_out" in repr(sequence)
