"""Learning from a server whose latency model is known."""

from dataclasses import replace

import numpy as np
import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.fitted import STEP_TERMS
from blis_sim.engine.latency.wrapped import PhaseShifted, WrappedLatency
from blis_sim.engine.request import Request, UniqueBlocks
from calibrate.fit.estimate import Estimate, recorded
from calibrate.fit.learn import Budget, LearningResult, learn, num_trials, relearn
from calibrate.fit.recording import Recording
from calibrate.fit.terms import EXPECTED, TERMS
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, KNOWN, VALUES, arrivals, measured, recording
from tests.calibrate.fit.known_server_tokens import token_times, with_token_times
from tests.replay.small_traces import row

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("learning")]

SMALL = Budget(per_round=120, per_final_round=120, in_final_rounds=360)


@pytest.fixture(scope="module")
def learned() -> LearningResult:
    """From two recordings of the known server that have token times."""
    plain = [recording(1500, rate=4.0), recording(1500, rate=4.0, seed=1)]
    reported = [with_token_times(each, token_times(each.arrivals)) for each in plain]
    return learn(reported, DEPLOYED, CONFIG, budget=Budget(2000, 3000, 6000))


def step_times(values: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    times: np.ndarray = DEPLOYED.basis(values, shapes) @ values[: len(STEP_TERMS)]
    return times


def test_step_times_are_recovered_within_one_percent_over_the_range_seen(learned: LearningResult) -> None:
    shapes, _ = recorded(recording(1500, rate=4.0, seed=7), CONFIG, DEPLOYED.latency(VALUES))
    known, found = step_times(VALUES, shapes), step_times(learned.estimate.values, shapes)
    with_prompts = shapes[:, BatchShape._fields.index("prefill_tokens")] > 0
    num_tokens = shapes[:, BatchShape._fields.index("prefill_tokens")]
    errors = found / known - 1
    assert np.abs(errors[~with_prompts]).max() < 0.005
    for least, most in ((1, 250), (250, 500), (500, 1000), (1000, 2000), (2000, 4096)):
        of_size = with_prompts & (num_tokens >= least) & (num_tokens < most)
        assert abs(errors[of_size].mean()) < 0.01, (least, most)
    assert abs(found.sum() / known.sum() - 1) < 0.002


def test_held_out_requests_are_predicted_better_than_other_runs_of_the_server_would(learned: LearningResult) -> None:
    held_out = learned.held_out[0]
    requests = arrivals(1500, rate=4.0)
    run, *others = [measured(requests, phase).ttft_us[-300:] for phase in (99, 98, 97, 96, 95)]
    noise = np.mean([np.abs(run - other) / run for other in others])
    assert held_out.num_requests == 300
    assert held_out.ttft.mape < noise
    assert held_out.e2e.mape < 0.01
    assert held_out.itl is not None
    assert held_out.itl.mape < 0.01


def test_the_range_seen_is_that_of_the_recordings(learned: LearningResult) -> None:
    runs = [recorded(recording(1500, rate=4.0, seed=seed), CONFIG, DEPLOYED.latency(VALUES)) for seed in (0, 1)]
    most = max(shapes[:, 6].max() for shapes, _ in runs)
    assert learned.largest.decode_requests == pytest.approx(most, abs=2)


def test_equal_seeds_give_equal_coefficients_and_progress_is_reported() -> None:
    recordings = [recording(60), recording(80, seed=1)]
    reported: list[None] = []
    first = learn(recordings, DEPLOYED, CONFIG, seed=5, budget=SMALL, on_progress=lambda: reported.append(None))
    again = learn(recordings, DEPLOYED, CONFIG, seed=5, budget=SMALL)
    assert first.estimate.values.tolist() == again.estimate.values.tolist()
    assert len(reported) == num_trials(recordings, DEPLOYED, SMALL)


def test_learning_on_from_an_estimate_forgets_where_it_came_from() -> None:
    start = Estimate(VALUES * 1.3, VALUES * 0.1, np.zeros(7))
    _, estimate = relearn([recording(200)], DEPLOYED, CONFIG, start, budget=Budget(200, 200, 1000))
    decodes = np.array([[0, 0, 0, 0, 0, 0, batch, 1_000 * batch, 0, 0] for batch in (1, 4, 8)])
    assert step_times(start.values, decodes) == pytest.approx(1.3 * step_times(VALUES, decodes))
    assert step_times(estimate.values, decodes) == pytest.approx(step_times(VALUES, decodes), rel=0.03)


def test_an_outlier_changes_little() -> None:
    plain = recording(200)
    spoilt = plain.ttft_us.copy()
    spoilt[::40] *= 30
    values = [
        learn([each], DEPLOYED, CONFIG, budget=SMALL).estimate.values
        for each in (plain, type(plain)(name="", arrivals=plain.arrivals, ttft_us=spoilt, decode_us=plain.decode_us))
    ]
    shape = np.array([[1, 800, 640_000, 0, 0, 640_000, 6, 6_000, 0, 0], [0, 0, 0, 0, 0, 0, 6, 6_000, 0, 0]])
    assert step_times(values[1], shape) == pytest.approx(step_times(values[0], shape), rel=0.02)


def test_servers_of_different_speed_do_not_bend_the_coefficients() -> None:
    one, other = recording(150), recording(150, seed=1)
    slow = type(other)(
        name="slow", arrivals=other.arrivals, ttft_us=other.ttft_us * 1.02, decode_us=other.decode_us * 1.02
    )
    found = learn([one, slow], DEPLOYED, CONFIG, budget=Budget(300, 300, 1500))
    assert found.estimate.slower[1] - found.estimate.slower[0] == pytest.approx(0.02, abs=0.006)


def test_a_server_that_becomes_faster_does_not_bend_the_coefficients() -> None:
    plain = recording(600)
    speed = np.where(np.arange(600) < 400, 1.0, 0.97)
    faster = type(plain)(
        name="faster", arrivals=plain.arrivals, ttft_us=plain.ttft_us * speed, decode_us=plain.decode_us * speed
    )
    found = learn([faster], DEPLOYED, CONFIG, budget=Budget(600, 600, 3000))
    assert found.spans.counts == (3,)
    assert found.estimate.slower == pytest.approx([0, 0, -0.03], abs=0.006)
    decodes = np.array([[0, 0, 0, 0, 0, 0, batch, 1_000 * batch, 0, 0] for batch in (1, 4, 8)])
    assert step_times(found.estimate.values, decodes) == pytest.approx(step_times(VALUES, decodes), rel=0.004)


def test_what_an_idle_start_costs_is_learned_from_the_requests_that_wait_for_no_step() -> None:
    found = learn([recording(400, rate=2.0, seed=1)], DEPLOYED, CONFIG, budget=Budget(400, 400, 1200))
    place = TERMS.place("idle_start_us")
    assert found.estimate.spreads[place] < 500  # 840 if they weighed as much as those that wait for a step
    assert found.estimate.values[place] == pytest.approx(1800, abs=2 * found.estimate.spreads[place])


def test_requests_that_share_their_steps_with_many_decide_less_than_those_of_a_quiet_server() -> None:
    quiet, saturated = recording(150, rate=2.0), recording(300, rate=60.0, seed=1)
    assert saturated.mean_in_flight > 50 * quiet.mean_in_flight
    found = learn([quiet, saturated], DEPLOYED, CONFIG, budget=Budget(2000, 2000, 6000))
    kv = found.estimate.values[TERMS.place("kv")]
    assert kv == pytest.approx(KNOWN["kv"], abs=0.03)  # 1.014 if all requests weighed as much


def test_coefficients_that_a_single_gpu_cannot_separate_stay_as_expected() -> None:
    found = learn([recording(60)], DEPLOYED, CONFIG, budget=SMALL)
    assert found.estimate.values[TERMS.place("all_reduce")] == EXPECTED["all_reduce"].mean


@pytest.mark.parametrize("model", ["qwen3-14b", "qwen3-32b", "mixtral-8x7b"])
def test_the_basis_of_many_shapes_is_that_of_each(model: str) -> None:
    deployed = replace(DEPLOYED, model=load_model(model))
    latency = deployed.latency(VALUES)
    shapes, _ = recorded(recording(80), CONFIG, latency)
    each = np.array([latency.basis(BatchShape(*shape)) for shape in shapes.tolist()])
    assert deployed.basis(VALUES, shapes) == pytest.approx(each)


class _Shapes(WrappedLatency):
    """A latency model that notes every shape; the engine asks once per step when it takes them one by one."""

    def __init__(self) -> None:
        super().__init__(PhaseShifted(DEPLOYED.latency(VALUES), 3))
        self.seen: list[BatchShape] = []

    def step_time(self, shape: BatchShape) -> int:
        self.seen.append(shape)
        return self.model.step_time(shape)


def test_the_shapes_of_a_fast_run_are_those_of_the_plain_one() -> None:
    known = recording(150, rate=8.0)
    noted = _Shapes()
    simulate(Engine(CONFIG, noted), known.arrivals)
    shapes, _ = recorded(known, CONFIG, PhaseShifted(DEPLOYED.latency(VALUES), 3))
    assert [BatchShape(*shape) for shape in shapes.tolist()] == noted.seen


def test_the_service_time_of_an_api_server_process_is_recognised() -> None:
    plain = recording(300, rate=8.0)
    known = with_token_times(plain, token_times(plain.arrivals))
    estimate = learn([known], DEPLOYED, CONFIG, budget=Budget(300, 300, 900)).estimate
    assert estimate.values[TERMS.place("output_turn_us")] == pytest.approx(KNOWN["output_turn_us"], rel=0.05)


def saturated_by_a_client_with_a_cap() -> Recording:
    """A recording of the known server, on a host that waits for growing batches, with more load than it bears."""
    instants = np.cumsum(np.random.default_rng(1).exponential(1e6 / 30, 500)).astype(int).tolist()
    requests = [
        Arrival(at, Request(f"r{number}", 900, 96, UniqueBlocks(f"r{number}"), 96), row(number))
        for number, at in enumerate(instants)
    ]
    unknown = np.zeros(len(requests))
    plan = Recording(name="capped", arrivals=requests, ttft_us=unknown, decode_us=unknown, max_concurrency=96)
    latency = PhaseShifted(replace(DEPLOYED, growth_requests=8).latency(VALUES), 9)
    record = plan.simulated(Engine(CONFIG, latency, reports_steps=False))
    place_of = {request_id: place for place, request_id in enumerate(record.ids)}
    order = [place_of[each.request.id] for each in requests]
    ttft_us, e2e_us = record.ttft_us[order].astype(float), record.e2e_us[order].astype(float)
    return replace(plan, ttft_us=ttft_us, decode_us=e2e_us - ttft_us)


def test_a_host_that_waits_is_recognised_where_other_coefficients_stand_in_for_it() -> None:
    values = VALUES.copy()
    values[TERMS.place("tiles")] *= 1.03
    start = Estimate(values, TERMS.expected_spreads(), np.zeros(0))
    chosen, _ = relearn([saturated_by_a_client_with_a_cap()], DEPLOYED, CONFIG, start, budget=Budget(500, 500, 500))
    assert chosen.growth_requests == 8
