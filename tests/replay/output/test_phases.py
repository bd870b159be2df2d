"""Averaging over the phases of the engine's steps."""

import numpy as np
import pytest
from hypothesis import given, settings

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.wrapped import PhaseShifted
from replay.arrivals import Arrival
from replay.output.ensemble import averaged, mean_metrics
from replay.simulation.record import Record
from replay.simulation.simulate import simulate
from tests.examples import examples
from tests.fakes import TestLatency, config, request
from tests.replay.small_traces import row
from tests.strategies import Workload, workloads

LATENCY = TestLatency(step_us=12_000, prefill_token_us=40, decode_us=80)


def measured(phase: int) -> Record:
    arrivals = [Arrival(number * 37_001, request(f"r{number}", 200, 30), row(number)) for number in range(60)]
    engine = Engine(config(engine="vllm"), PhaseShifted(LATENCY, phase), reports_steps=False)
    return simulate(engine, arrivals).requests


def test_many_steps_at_once_take_as_long_as_one_by_one() -> None:
    shifted = PhaseShifted(LATENCY, 3)
    shape = BatchShape(decode_requests=7, decode_context_tokens=1234)
    one_by_one = [shifted.step_time(shape._replace(decode_context_tokens=1234 + 7 * step)) for step in range(500)]
    assert shifted.decode_times(shape, 500).tolist() == one_by_one


def test_steps_are_neither_longer_nor_shorter_on_average_and_two_percent_apart_at_most() -> None:
    times = PhaseShifted(LATENCY, 0).decode_times(BatchShape(decode_requests=1), 20_000)
    exact = LATENCY.step_time(BatchShape(decode_requests=1))
    assert abs(times.mean() / exact - 1) < 0.0005
    assert np.abs(times - exact).max() <= 0.02 * exact + 1


def test_a_time_too_large_to_shift_stays_as_it_is() -> None:
    huge = PhaseShifted(TestLatency(step_us=2**62), 1)
    shape = BatchShape(decode_requests=1)
    assert huge.step_time(shape) == 2**62 == huge.decode_times(shape, 1)[0]


def test_phases_differ_and_each_repeats_itself() -> None:
    assert list(measured(0)) == list(measured(0))
    assert list(measured(0)) != list(measured(1))


def test_the_mean_over_phases_is_each_requests_own() -> None:
    runs = [measured(phase) for phase in range(4)]
    means = averaged(runs)
    assert means.ttft_us.tolist() == np.rint(np.mean([run.ttft_us for run in runs], axis=0)).tolist()
    assert np.std(means.ttft_us) < np.mean([np.std(run.ttft_us) for run in runs])


def test_requests_are_found_again_whatever_their_order() -> None:
    def run(*numbers: int) -> Record:
        arrivals = [
            Arrival(1 + place, request(f"r{number}", 100 * number, 3), row()) for place, number in enumerate(numbers)
        ]
        return simulate(Engine(config(engine="vllm", max_num_seqs=1), LATENCY), arrivals).requests

    one, other = run(1, 2), run(2, 1)
    mean = averaged([one, other])
    assert mean.ids == ["r1", "r2"]
    assert mean.e2e_us.tolist() == np.rint((one.e2e_us + other.e2e_us[::-1]) / 2).tolist()


def test_requests_that_runs_sent_at_different_instants_are_sent_at_their_mean() -> None:
    def run(*instants: int) -> Record:
        arrivals = [Arrival(at, request(f"r{number}"), row()) for number, at in enumerate(instants)]
        return simulate(Engine(config(engine="vllm"), LATENCY), arrivals).requests

    assert averaged([run(10, 500), run(20, 900)]).arrived_at.tolist() == [15, 700]


def test_one_run_is_its_own_mean() -> None:
    assert list(averaged([measured(0)])) == list(measured(0))
    assert mean_metrics([{"instance_id": "a", "n": 3, "x": 0.5}]) == {"instance_id": "a", "n": 3, "x": 0.5}


def test_figures_are_averaged_and_counts_stay_whole_where_they_can() -> None:
    assert mean_metrics([{"n": 3, "x": 1.0}, {"n": 5, "x": 2.0, "y": 4}]) == {"n": 4, "x": 1.5, "y": 2}
    assert mean_metrics([{"n": 3}, {"n": 4}]) == {"n": pytest.approx(3.5)}


@settings(max_examples=examples(30))
@given(workloads(with_speculation=False))
def test_shifted_steps_leave_the_fast_path_equal_to_the_plain_one(workload: Workload) -> None:
    ends = []
    for reports_steps in (True, False):
        plain = workload.engine()
        engine = Engine(plain.config, PhaseShifted(plain.latency, 5), reports_steps)
        for at, each in workload.arrivals:
            engine.submit(each, at)
        engine.advance(10_000_000)
        ends.append(engine.steps.ends().tolist())
    assert ends[0] == ends[1]


def test_drafts_by_position_are_averaged_position_by_position() -> None:
    runs = [{"accepted_per_pos": [4, 2]}, {"accepted_per_pos": [6, 1]}]
    assert mean_metrics(runs) == {"accepted_per_pos": [5, 1.5]}
