"""With one seat the engine is a queue with one server, whose mean wait is known (Pollaczek and Khinchine)."""

import numpy as np
import pytest

from tests.theory.single_server import Run, arrival, poisson, served

SEEDS = range(6)
STEP_US = 1_000


def replications(lengths: list[int], utilisation: float, scheduling: str, num_requests: int) -> list[Run]:
    """Services of so many steps, each of `lengths` equally likely."""
    rate_per_us = utilisation / (np.mean(lengths) * STEP_US)
    runs = []
    for seed in SEEDS:
        drawn = np.random.default_rng(1_000 + seed).permutation(lengths * (num_requests // len(lengths))).tolist()
        runs.append(served(poisson(float(rate_per_us), drawn, seed), STEP_US, scheduling))
    return runs


def assert_estimates(figures: list[float], theory: float) -> None:
    """The mean over seeds agrees with theory within 3 standard errors, and those are small enough to mean something."""
    standard_error = float(np.std(figures, ddof=1)) / len(figures) ** 0.5
    assert standard_error < 0.05 * theory
    assert abs(float(np.mean(figures)) - theory) < 3 * standard_error


@pytest.mark.parametrize(
    ("scheduling", "lengths"), [("vllm", [3]), ("vllm", [1, 5]), ("blis", [10])], ids=["3", "1 or 5", "10"]
)
def test_the_mean_wait_is_that_of_a_queue_with_one_server(scheduling: str, lengths: list[int]) -> None:
    utilisation = 0.5
    mean, mean_square = np.mean(lengths) * STEP_US, np.mean(np.square(lengths)) * STEP_US**2
    theory = utilisation * mean_square / mean / (2 * (1 - utilisation))
    runs = replications(lengths, utilisation, scheduling, 5_000 // max(lengths))
    assert_estimates([float(np.mean(run.waits_us)) for run in runs], float(theory))


def test_the_wait_of_equal_services_is_half_that_which_utilisation_alone_would_give() -> None:
    """M/D/1 at 70 %: utilisation / (1 - utilisation) / 2 services."""
    runs = replications([1], 0.7, "vllm", 3_000)
    assert_estimates([float(np.mean(run.waits_us)) / STEP_US for run in runs], 0.7 / 0.3 / 2)


def test_the_share_of_requests_that_find_the_server_busy_is_its_utilization() -> None:
    """Poisson arrivals see time averages."""
    runs = replications([1], 0.3, "vllm", 1_500)
    assert_estimates([float(np.mean(np.array(run.waits_us) > 0)) for run in runs], 0.3)
    busy = [float(run.simulated.engine.steps.durations().sum()) / run.simulated.engine.clock for run in runs]
    assert_estimates(busy, 0.3)


def test_blis_begins_with_a_request_that_arrives_in_the_last_step_of_the_only_other_one_at_once() -> None:
    """BLIS forgets a step in which every request completes, so its queue is a queue with one server but for that."""
    arrivals = [arrival(0, 0, 3), arrival(1, 1_700, 1), arrival(2, 10_000, 3), arrival(3, 12_400, 1)]
    assert served(arrivals, STEP_US, "blis").waits_us == [0, 1_300, 0, 0]


def test_waits_follow_from_arrivals_by_lindleys_recursion() -> None:
    arrivals = poisson(0.8 / STEP_US, [1] * 500, seed=7)
    expected, free_at = [], 0
    for each in arrivals:
        starts_at = max(free_at, each.at)
        expected.append(starts_at - each.at)
        free_at = starts_at + STEP_US
    assert served(arrivals, STEP_US, "vllm").waits_us == expected
