"""How much servers of one kind differ, learned from recordings of several."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from calibrate.fit.coefficients_file import content, text_of
from calibrate.fit.estimate import Estimate
from calibrate.fit.learn import Budget, learn, relearn
from calibrate.fit.recording import Recording
from calibrate.fit.terms import TERMS
from replay.simulation.uncertainty import ARITHMETIC, SPEED_SPREAD, ServerSpread, uncertainty_of
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, VALUES, recording

BUDGET = Budget(2000, 2000, 6000)
START = Estimate(VALUES, TERMS.expected_spreads(), np.zeros(0))


def slowed(plain: Recording, factor: float) -> Recording:
    """A recording of a server whose requests all take `factor` times as long."""
    return replace(plain, ttft_us=plain.ttft_us * factor, decode_us=plain.decode_us * factor)


def spread_of(factors: list[float], num_requests: int = 150) -> ServerSpread | None:
    recordings = [slowed(recording(num_requests, seed=seed), factor) for seed, factor in enumerate(factors)]
    return relearn(recordings, DEPLOYED, CONFIG, START, budget=BUDGET)[1].servers


@pytest.mark.slow
def test_servers_of_equal_speed_are_found_to_differ_less_than_usual() -> None:
    equal = spread_of([1.0] * 6)
    assert equal is not None
    assert equal.speed < 0.8 * SPEED_SPREAD


@pytest.mark.slow
def test_servers_of_different_speed_are_found_to_differ() -> None:
    different = spread_of([0.97, 1.03, 0.98, 1.02, 1.0, 1.03])
    assert different is not None
    assert different.speed == pytest.approx(0.025, rel=0.4)


def test_two_recordings_do_not_show_how_much_servers_differ() -> None:
    assert spread_of([0.98, 1.02], 40) is None


@pytest.mark.slow
def test_the_file_states_how_much_servers_differ_and_intervals_use_it() -> None:
    recordings = [recording(80, seed=seed) for seed in range(3)]
    learned = learn(recordings, DEPLOYED, CONFIG, budget=Budget(240, 240, 240))
    servers = learned.estimate.servers
    assert servers is not None
    text = text_of(content(learned, recordings, DEPLOYED, CONFIG, 0))
    assert "\n# servers: how much servers of this kind differ" in text
    found = uncertainty_of("coefficients.yaml", yaml.safe_load(text)).servers
    assert found.speed == pytest.approx(servers.speed, rel=0.01)
    assert found.arithmetic == pytest.approx(servers.arithmetic, rel=0.01)
    few = replace(learned, estimate=replace(learned.estimate, servers=None))
    assert "servers" not in text_of(content(few, recordings, DEPLOYED, CONFIG, 0))


def test_arithmetic_is_that_of_the_fitted_latency_model() -> None:
    assert set(ARITHMETIC) <= set(TERMS.step)
