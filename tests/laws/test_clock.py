"""The clock of a run does not depend on how its steps were taken."""

import pytest

from blis_sim.engine.core import Engine
from tests.fakes import TestLatency, config, request


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
@pytest.mark.parametrize("until", [0, 999, 1_000, 1_001, 3_000, 20_500, 29_999, 70_000])
def test_the_clock_is_that_of_the_last_thing_that_happened(scheduling: str, until: int) -> None:
    clocks = []
    for reports_steps in (True, False):
        engine = Engine(config(engine=scheduling), TestLatency(), reports_steps)
        engine.submit(request("a", 10, 60), 0)
        engine.submit(request("b", 10, 30), 0)
        engine.advance(until)
        clocks.append(engine.clock)
    assert clocks[0] == clocks[1]
