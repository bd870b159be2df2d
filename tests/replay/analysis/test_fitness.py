"""One figure of merit for a run."""

import pytest

from blis_sim.options import OptionError
from replay.analysis.on_demand import fitness
from replay.report_options import METRICS, parse_weights
from tests.fakes import request
from tests.replay.labelled_runs import ran


def test_scores_are_between_0_and_1_and_weighed() -> None:
    run = ran((0, request(output_tokens=5), {}))
    found = fitness(run.requests, {"p99_ttft": 3.0, "throughput": 0.5, "tokens_per_sec": 1.0}, 5, duration_s=0.01)
    assert found.components == {"p99_ttft": 1 / 2, "throughput": 100 / 200, "tokens_per_sec": 500 / 10_500}
    assert found.score == pytest.approx(3 / 2 + 0.5 / 2 + 500 / 10_500)


def test_a_run_that_answers_nothing_scores_nothing() -> None:
    run = ran((0, request(input_tokens=10_000), {}))
    found = fitness(run.requests, dict.fromkeys(METRICS, 1.0), 0, duration_s=0.0)
    assert set(found.components.values()) == {0.0}


def test_weights_come_by_metric() -> None:
    assert parse_weights("throughput:0.5, p99_ttft:2") == {"p99_ttft": 2.0, "throughput": 0.5}
    assert list(parse_weights("throughput:0.5,p99_ttft:2")) == ["p99_ttft", "throughput"]
    assert parse_weights("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed:1", "--fitness-weights has the metrics throughput, .*, got 'speed'"),
        ("throughput", "--fitness-weights must be metric:weight.*, got 'throughput'"),
        ("throughput:much", "got 'throughput:much'"),
        ("throughput:-1", "got 'throughput:-1'"),
        ("throughput:nan", "got 'throughput:nan'"),
        ("p99_ttft:1,p99_ttft:2", "--fitness-weights names p99_ttft twice"),
    ],
)
def test_bad_weights_are_one_line(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_weights(text)
