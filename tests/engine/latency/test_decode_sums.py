"""Kept sums of decode times: differences of them are what the model says of steps in a row."""

from hypothesis import given
from hypothesis import strategies as st

from engine.batch_shape import decodes
from engine.latency.decode_sums import LONGEST_STEP_US, MOST_RUNS, MOST_SEQUENCES, STEPS_OF_A_RUN, DecodeSums
from engine.latency.phase_shift import PhaseShifted
from tests.fakes import TestLatency

UNEVEN = PhaseShifted(TestLatency(step_us=9_000, decode_us=70, figure_us=1), phase=3)
"""No two steps of it take the same time."""


@given(asked=st.lists(st.tuples(st.integers(1, MOST_SEQUENCES), st.integers(0, 9_000)), min_size=1, max_size=5))
def test_differences_of_sums_are_the_times_of_steps_in_a_row(asked: list[tuple[int, int]]) -> None:
    kept = DecodeSums(UNEVEN)
    for num_sequences, context in asked * 2:
        run, step = kept.find(num_sequences, context)
        assert run is not None
        sums, instants = run
        assert (len(sums), list(sums)) == (STEPS_OF_A_RUN + 1, instants.tolist())
        times = UNEVEN.decode_times(decodes(num_sequences, context), STEPS_OF_A_RUN - step)
        assert [end - start for start, end in zip(sums[step:], sums[step + 1 :], strict=False)] == times.tolist()


def test_what_is_forgotten_is_found_again() -> None:
    kept = DecodeSums(UNEVEN)
    first, _ = kept.find(1, 7)
    for number in range(1, MOST_RUNS + 1):
        kept.find(1, number * STEPS_OF_A_RUN)
    again, _ = kept.find(1, 7)
    assert first is not None
    assert again is not None
    assert again is not first
    assert again[0] == first[0]


def test_nothing_is_kept_of_many_sequences_nor_of_none() -> None:
    assert DecodeSums(UNEVEN).find(MOST_SEQUENCES + 1, 7)[0] is None
    assert DecodeSums(UNEVEN).find(0, 0)[0] is None


def test_nor_of_steps_so_long_that_their_sum_might_not_fit() -> None:
    assert DecodeSums(TestLatency(step_us=LONGEST_STEP_US)).find(1, 7)[0] is not None
    assert DecodeSums(TestLatency(step_us=LONGEST_STEP_US + 1)).find(1, 7)[0] is None
