"""Schedulers and their parts keep their attributes in slots.

A call of a method of an object with a dictionary costs Python 3.11 twice as much.
"""

import pytest

from blis_sim.engine.scheduler.blis import BlisScheduler, TieredBlisScheduler
from blis_sim.engine.scheduler.cohort import DecodeCohort
from blis_sim.engine.scheduler.drafter import Drafter
from blis_sim.engine.scheduler.group_cohort import GroupCohort
from blis_sim.engine.scheduler.offloader import Offloader
from blis_sim.engine.scheduler.vllm import BatchQueue, UrgentRequests, VllmScheduler


@pytest.mark.parametrize(
    "part",
    [
        *(VllmScheduler, Drafter, Offloader, DecodeCohort, GroupCohort, BatchQueue, UrgentRequests),
        *(BlisScheduler, TieredBlisScheduler),
    ],
)
def test_no_part_of_a_scheduler_has_a_dictionary_of_attributes(part: type) -> None:
    assert part.__dictoffset__ == 0
