"""Clients that hang up: their rows say when, and are no failures; and loads by duration."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError, options_from
from observe.options import ObserveOptions
from replay.arrivals import arrivals_of
from tests.fakes import config
from traces import TraceHeader
from traces.workload.generate import generate
from traces.workload.presets import SyntheticOptions

Observe: TypeAlias = Callable[..., Any]


def test_clients_that_hang_up_are_counted_apart(observe: Observe) -> None:
    run = observe(model="ok-1-60", num_requests=12, rate=60.0, output_tokens=9, cancel_rate=0.5, cancel_delay="200ms")
    assert run.code == 0
    left = [row for row in run.trace.rows if row.status == "incomplete"]
    assert 2 <= len(left) <= 10
    assert run.summary["hung_up"] == len(left)
    assert (run.summary["completed"], run.summary["failed"]) == (12 - len(left), {})
    for row in left:
        assert row.finish_reason == "abort"
        assert 0.2e6 <= row.deadline_us - row.arrival_time_us < 30e6
        assert row.output_tokens < 9


def test_the_seed_alone_decides_which_clients_hang_up(observe: Observe) -> None:
    def leaving() -> set[int]:
        run = observe(num_requests=12, rate=100.0, model="ok-500-1", cancel_rate=0.4, cancel_delay="1ms", seed=5)
        return {row.request_id for row in run.trace.rows if row.status == "incomplete"}

    assert leaving() == leaving() != set()


def test_a_replay_ends_such_requests_when_their_clients_left(observe: Observe) -> None:
    run = observe(model="ok-1-60", num_requests=3, rate=60.0, output_tokens=9, cancel_rate=1.0, cancel_delay="150ms")
    limits = config(max_model_len=2048)
    for arrival in arrivals_of(run.trace, "", limits).arrivals:
        assert arrival.request.output_tokens == 2048 - arrival.request.input_tokens
        assert arrival.request.deadline_us == arrival.row.deadline_us > 0
    simulated = run.trace._replace(header=TraceHeader(mode="replayed"))
    assert all(each.request.output_tokens < 9 for each in arrivals_of(simulated, "", limits).arrivals)


def test_a_duration_bounds_what_is_sent(observe: Observe) -> None:
    run = observe(num_requests=None, rate=100.0, duration="300ms", arrival="constant")
    assert 28 <= len(run.trace.rows) <= 31


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"duration": "long"}, "--duration must be a duration such as 500ms or 30s, got 'long'"),
        ({"duration": "0s"}, "--duration must be above 0 and at most "),
        ({"duration": "1s", "horizon": 5}, "--duration and --horizon exclude each other, give one of them"),
        ({"num_requests": 1, "cancel_delay": "soon"}, "--cancel-delay must be a duration such as 500ms or 30s"),
        ({"num_requests": 1, "cancel_rate": 1.5}, "--cancel-rate must be at most 1, got 1.5"),
    ],
)
def test_what_is_no_duration_is_refused(given: dict[str, Any], complaint: str) -> None:
    values = {"url": "http://localhost:1", "rate": 1.0, "output": "x"}
    with pytest.raises(BlisError, match=f"^{complaint}"):
        options_from(ObserveOptions, **values, **given)


def test_stages_end_by_themselves_and_send_what_a_simulation_sends(observe: Observe) -> None:
    run = observe(num_requests=None, rate=None, stages=("20-180:300ms", "100:100ms"), arrival="constant", seed=3)
    spec = SyntheticOptions(stages=("20-180:300ms", "100:100ms"), arrival="constant")
    simulated = generate(spec.synthetic_spec(num_requests=0, seed=3)).requests
    assert len(simulated) == 29 + 9
    sent = sorted(row.arrival_time_us for row in run.trace.rows)
    assert sent == [each.arrival_us for each in simulated]
    assert run.summary["completed"] == 38
