"""Stretches of measured steps around prompts."""

import numpy as np
import pytest

from blis_sim.engine.latency.fitted import STEP_TERMS
from calibrate.fit.recording import Recording, Steps, Stretches, stretches_of
from tests.calibrate.fit.known_server import DEPLOYED, VALUES, recording
from tests.calibrate.fit.known_server_tokens import token_times, with_token_times


def steps(num_steps: int, prompts: list[int], not_plain: tuple[int, ...] = ()) -> Steps:
    """One request decodes, and each step takes 10 us."""
    return Steps(
        ends_us=np.arange(num_steps, dtype=np.float64) * 10,
        decodes=np.ones(num_steps, np.int64),
        context_tokens=np.arange(num_steps) + 50,
        plain=~np.isin(np.arange(num_steps), not_plain),
        prompt_steps=np.array(prompts),
        prompt_requests=np.arange(len(prompts)),
        prompt_tokens=np.full(len(prompts), 100),
    )


def spans(found: Stretches) -> list[tuple[int, int]]:
    return list(zip(found.first.tolist(), found.last.tolist(), strict=True))


def test_a_stretch_begins_before_its_prompt_and_lasts_for_a_while() -> None:
    assert spans(stretches_of(steps(60, [10, 40]))) == [(8, 18), (38, 48)]


def test_a_stretch_ends_where_the_next_begins() -> None:
    assert spans(stretches_of(steps(60, [10, 17]))) == [(8, 14), (15, 25)]


def test_prompts_close_to_each_other_are_in_one_stretch() -> None:
    assert spans(stretches_of(steps(60, [10, 10, 13, 18]))) == [(8, 26)]


def test_stretches_lie_within_the_recording_and_hold_plain_steps_only() -> None:
    assert spans(stretches_of(steps(46, [1, 10, 20, 40], not_plain=(12,)))) == [(18, 28), (38, 45)]


def test_a_stretch_takes_from_the_end_of_the_step_before_it_to_the_end_of_its_last() -> None:
    found = stretches_of(steps(60, [10, 40]))
    assert found.durations_us.tolist() == [110, 110]
    assert found.requests.tolist() == [0, 1]


def test_only_those_are_kept_whose_prompts_all_are() -> None:
    found = stretches_of(steps(90, [10, 12, 30, 50, 70]))
    assert spans(found.only(np.array([True, False, True, False, True]))) == [(28, 38), (68, 78)]
    assert spans(found.only(np.array([True, True, True]))) == [(8, 20), (28, 38)]


def test_shapes_show_prompts_less_cached_tokens_and_recent_ones() -> None:
    shapes, begins = stretches_of(steps(60, [10, 12, 40])).shapes(np.array([0, 30, 0]))
    assert begins.tolist() == [0, 13]
    assert len(shapes) == 24
    assert shapes[2].tolist() == [1, 100, 10_000, 0, 0, 10_000, 1, 60, 0, 0]
    assert shapes[4].tolist() == [1, 70, 4_900, 30, 2_100, 7_000, 1, 62, 99, 0]
    assert shapes[3].tolist() == [0, 0, 0, 0, 0, 0, 1, 61, 0, 0]


@pytest.fixture(scope="module")
def known() -> Recording:
    plain = recording(300, rate=4.0)
    return with_token_times(plain, token_times(plain.arrivals))


def test_stretches_of_a_known_server_last_as_long_as_its_coefficients_predict(known: Recording) -> None:
    assert known.stretches is not None
    shapes, begins = known.stretches.shapes(np.zeros(300, np.int64))
    step_us = DEPLOYED.basis(VALUES, shapes) @ VALUES[: len(STEP_TERMS)]
    errors = known.stretches.durations_us / np.add.reduceat(step_us, begins) - 1
    assert len(errors) > 200
    assert np.abs(errors).max() < 0.02
    assert abs(errors.mean()) < 0.001
