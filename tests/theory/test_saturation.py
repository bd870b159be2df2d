"""Under more load than it can serve an engine produces what its batch and its step time allow, no more and no less."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.events import StepDone
from replay.arrivals import Arrival
from tests.examples import examples
from tests.fakes import TestLatency, config, run
from tests.theory.single_server import SCHEDULINGS, arrival, served

STEP_US = 1_000


def backlog(output_tokens: list[int]) -> list[Arrival]:
    """All there from the start."""
    return [arrival(number, 0, tokens) for number, tokens in enumerate(output_tokens)]


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
@settings(max_examples=examples(30), deadline=None)
@given(seats=st.integers(1, 6), tokens=st.integers(1, 6), waves=st.integers(1, 5))
def test_requests_leave_at_seats_per_time_of_service(scheduling: str, seats: int, tokens: int, waves: int) -> None:
    result = served(backlog([tokens] * (seats * waves)), STEP_US, scheduling, seats)
    assert result.simulated.engine.clock == waves * tokens * STEP_US


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
@settings(max_examples=examples(30), deadline=None)
@given(seats=st.integers(1, 6), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=25))
def test_every_step_produces_a_token_per_seat_while_a_request_waits(
    scheduling: str, seats: int, lengths: list[int]
) -> None:
    result = served(backlog(lengths), STEP_US, scheduling, seats)
    engine = result.simulated.engine
    last_admission_us = max(result.waits_us)
    num_tokens = sum(lengths)
    assert engine.counters.output_tokens == num_tokens
    full_steps = last_admission_us // STEP_US
    assert full_steps * seats <= num_tokens
    assert len(engine.steps) >= -(-num_tokens // seats)
    assert len(engine.steps) <= full_steps + max(lengths)


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_each_of_these_steps_is_full(scheduling: str) -> None:
    lengths = [1, 7, 3, 9, 2, 2, 5, 8, 1, 4, 6, 3]
    engine = Engine(config(100_000, 16, max_num_seqs=3, **SCHEDULINGS[scheduling]), TestLatency(step_us=STEP_US))
    events = run(engine, [(each.at, each.request) for each in backlog(lengths)])
    emitted = [len(event.emitted) for event in events if isinstance(event, StepDone)]
    last_admission_us = max(served(backlog(lengths), STEP_US, scheduling, 3).waits_us)
    assert set(emitted[: last_admission_us // STEP_US]) == {3}
