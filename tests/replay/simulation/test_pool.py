"""Percentiles over very many values kept as few: the figures are those of the whole sample."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, StepDone
from replay.arrivals import Arrival
from replay.simulation.record import COMPLETED, Pool, pool_of
from replay.simulation.simulate import simulate
from tests.examples import examples
from tests.replay.small_traces import row
from tests.replay.step_by_step import drained
from tests.strategies import Workload, workloads

_samples = st.lists(st.integers(0, 10**7) | st.integers(0, 5), min_size=1, max_size=60)


def expanded(pool: Pool) -> list[int]:
    return [pool.at_rank(rank) for rank in range(len(pool))]


@given(_samples, st.floats(0, 100))
def test_figures_of_a_pool_are_those_of_numpy_over_the_sample(sample: list[int], percent: float) -> None:
    pool = pool_of(sample)
    assert expanded(pool) == sorted(sample)
    assert pool.percentile_ms(percent) == pytest.approx(np.percentile(sample, percent) / 1000, rel=1e-9, abs=1e-9)
    assert pool.mean_ms() == pytest.approx(np.mean(sample) / 1000, rel=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(workloads(with_hang_ups=False), st.sampled_from(["blis", "vllm"]))
def test_times_between_tokens_are_those_of_the_tokens_one_by_one(workload: Workload, scheduling: str) -> None:
    workload.settings["engine"] = scheduling
    if scheduling == "vllm":
        workload.settings["total_kv_blocks"] = int(workload.settings["total_kv_blocks"]) + 1
    else:
        workload = replace(workload, speculation=None)
    engine, events = drained(workload)
    arrivals = [Arrival(at, request, row(number)) for number, (at, request) in enumerate(workload.arrivals)]
    pool = simulate(workload.engine(), arrivals).requests.tokens.gaps()
    assert expanded(pool) == sorted(itls_one_by_one(engine, events))


def itls_one_by_one(engine: Engine, events: list[Event]) -> list[int]:
    """From the events alone: with BLIS's scheduling the steps of tokens, with vLLM's the gaps between their ends."""
    steps: dict[str, list[StepDone]] = {}
    completed = []
    for event in events:
        if isinstance(event, StepDone):
            for sequence in event.emitted:
                steps.setdefault(sequence.request.id, []).append(event)
        elif isinstance(event, Preempted) and engine.config.engine == "blis":
            steps.pop(event.sequence.request.id, None)  # all tokens are generated again
        elif isinstance(event, Finished) and event.outcome in COMPLETED:
            completed.append(event.sequence.request.id)
    if engine.config.engine == "blis":
        overhead_us = engine.latency.output_token_time
        return [step.at - step.started_at + overhead_us for name in completed for step in steps.get(name, [])[1:]]
    return [later.at - earlier.at for name in completed for earlier, later in pairwise(steps.get(name, []))]


def test_the_mean_is_exact_where_the_sum_exceeds_64_bits() -> None:
    pool = pool_of([2**62, 2**62, 2**62 + 4000])
    assert pool.mean_ms() == pytest.approx(2**62 / 1000)
