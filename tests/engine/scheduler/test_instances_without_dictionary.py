"""Schedulers keep their attributes in slots.

A call of a method of an object with a dictionary costs Python 3.11 twice as much.
"""

import pytest

from blis_sim.engine.scheduler.blis import BlisScheduler, TieredBlisScheduler
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.scheduler.vllm_groups import GroupedScheduler
from blis_sim.engine.scheduler.vllm_offloading import OffloadingScheduler
from blis_sim.engine.scheduler.vllm_speculative import SpeculativeScheduler


@pytest.mark.parametrize(
    "scheduler",
    [
        *(VllmScheduler, SpeculativeScheduler, GroupedScheduler, OffloadingScheduler),
        *(BlisScheduler, TieredBlisScheduler),
    ],
)
def test_no_scheduler_has_a_dictionary_of_attributes(scheduler: type) -> None:
    assert scheduler.__dictoffset__ == 0
