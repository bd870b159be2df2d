"""Laws of urgency and of preemption by priority, on random runs."""

import pytest

from tests.examples import examples
from tests.laws.urgency_runs import drawn, story_with_laws

NUM_RUNS = examples(300)

pytestmark = pytest.mark.timeout(180 + NUM_RUNS // 10)  # a busy machine takes many times the 2 ms of a run


def test_no_request_starves_and_no_place_is_lost_below_the_gap_or_twice_to_one_request() -> None:
    num_displaced = 0
    for number in range(NUM_RUNS):
        num_displaced += story_with_laws(drawn(number))[1]
    assert num_displaced > NUM_RUNS // 4


def test_runs_that_report_their_steps_have_the_same_events_as_runs_that_leap() -> None:
    for number in range(NUM_RUNS // 3):
        run = drawn(number)
        assert story_with_laws(run, allows_multi_step=False) == story_with_laws(run, allows_multi_step=True)
