"""The base of latency models has a default for everything but the time of a step."""

import pytest

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency, config, request, run

FULL = TestLatency(step_us=900, prefill_token_us=7, decode_us=30, figure_us=1)


class StepsAlone(LatencyModel):
    """Steps as long as those of `FULL`, which also times many decodes at once."""

    def step_time(self, shape: BatchShape) -> Micros:
        return FULL.step_time(shape)


@pytest.mark.parametrize("engine", ["vllm", "blis"])
def test_a_model_of_steps_alone_gives_the_run_of_one_that_times_many_at_once(engine: str) -> None:
    arrivals = [(2_000 * place, request(f"r{place}", 20 + place, 90)) for place in range(12)]
    ends = [
        [
            (event.at, event.sequence.request.id)
            for event in run(Engine(config(engine=engine), latency), arrivals)
            if isinstance(event, Finished)
        ]
        for latency in (FULL, StepsAlone())
    ]
    assert len(ends[0]) == 12
    assert ends[0] == ends[1]


def test_ranks_take_as_long_as_the_slowest_of_them() -> None:
    shapes = [decodes(2, 100), decodes(9, 50), decodes(1, 4_000)]
    assert StepsAlone().ranks_time(shapes) == max(map(FULL.step_time, shapes))


def test_a_model_without_step_times_says_so() -> None:
    with pytest.raises(NotImplementedError, match="the latency model LatencyModel has no step_time"):
        LatencyModel().step_time(decodes(1, 1))
