"""Mean number in a system = arrival rate x mean time in it, each side measured in its own way."""

from collections.abc import Callable

import numpy as np
import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.stats import EngineStats
from replay.arrivals import Arrival
from tests.fakes import TestLatency, config, run
from tests.theory.single_server import SCHEDULINGS, poisson, served

STEP_US = 1_000
SEATS = 4


def load(seed: int) -> list[Arrival]:
    """Near saturation, with answers of 1 to 20 tokens."""
    lengths = np.random.default_rng(seed).integers(1, 21, 600).tolist()
    return poisson(0.9 * SEATS / (10.5 * STEP_US), lengths, seed)


def integral(arrivals: list[Arrival], scheduling: str, gauge: Callable[[EngineStats], int]) -> int:
    """Return the mean of a gauge over time, read between any two events."""
    engine = Engine(config(100_000, 16, max_num_seqs=SEATS, **SCHEDULINGS[scheduling]), TestLatency(step_us=STEP_US))
    for arrival in arrivals:
        engine.submit(arrival.request, arrival.at)
    area, now = 0, 0
    while (due_at := engine.next_event_at()) is not None:
        area += gauge(engine.stats) * (due_at - now)
        engine.advance(due_at)
        now = due_at
    return area


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_littles_law_holds_for_the_whole_engine(scheduling: str) -> None:
    arrivals = load(seed=1)
    engine = Engine(config(100_000, 16, max_num_seqs=SEATS, **SCHEDULINGS[scheduling]), TestLatency(step_us=STEP_US))
    events = run(engine, [(arrival.at, arrival.request) for arrival in arrivals])
    changes = [(arrival.at, 1) for arrival in arrivals]
    changes += [(event.at, -1) for event in events if isinstance(event, Finished)]
    area, now, present = 0, 0, 0
    for at, change in sorted(changes):
        area += present * (at - now)
        now, present = at, present + change
    mean_time = float(np.mean(served(arrivals, STEP_US, scheduling, SEATS).times_us))
    assert present == 0
    assert area / now == pytest.approx(len(arrivals) / now * mean_time)


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_littles_law_holds_for_waiting_requests(scheduling: str) -> None:
    arrivals = load(seed=2)
    waits_us = served(arrivals, STEP_US, scheduling, SEATS).waits_us
    assert sum(waits_us) > 0
    assert integral(arrivals, scheduling, lambda stats: stats.num_waiting) == sum(waits_us)


def test_littles_law_holds_for_running_requests() -> None:
    arrivals = load(seed=3)
    result = served(arrivals, STEP_US, "vllm", SEATS)
    assert integral(arrivals, "vllm", lambda stats: stats.num_running) == sum(result.times_us) - sum(result.waits_us)
