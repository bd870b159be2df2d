"""The random workloads of the laws reach each way of composing steps.

They are watched by a subclass, which a compiled scheduler cannot have.
"""

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st

from blis_sim.engine.instance import Instance
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from tests.laws.test_cohort import Driving, result
from tests.strategies import Workload, usual_workloads, workloads


class TracedScheduler(VllmScheduler):
    """Notes which ways of composing steps a run takes."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance, reports_steps=False)
        self.taken: set[str] = set()

    def compose_newcomers(self, at: Micros) -> bool:
        joins = super().compose_newcomers(at)
        self.taken.add("newcomers" if joins else "no newcomers")
        return joins

    def schedule(self, at: Micros) -> bool:
        has_members, has_others = bool(self.cohort.members), bool(self.explicit)
        is_scheduled = super().schedule(at)
        if has_members and has_others and is_scheduled:
            self.taken.add("cohort and others")
        if not is_scheduled:
            self.taken.add("nothing")
        return is_scheduled

    def materialize_all(self) -> None:
        self.taken.add("materialize all")
        super().materialize_all()

    def materialize(self, sequence: Sequence) -> None:
        super().materialize(sequence)
        if self._late:
            self.taken.add("late tokens")

    def preempt(self, victim: Sequence) -> None:
        self.taken.add("preemption")
        if self.cohort.members:
            self.taken.add("preemption beside the cohort")
        super().preempt(victim)

    def _leap(self, at: Micros, last: Micros, most: int) -> tuple[Micros, Micros]:
        num_decodes = self.cohort.num_decodes
        taken = super()._leap(at, last, most)
        self.taken.add("leap" if num_decodes == self.cohort.num_decodes else "leap to a foreseen end")
        return taken


@pytest.mark.parametrize(
    "way",
    [
        *("newcomers", "no newcomers", "cohort and others", "nothing", "materialize all", "late tokens"),
        *("preemption", "preemption beside the cohort", "leap", "leap to a foreseen end"),
    ],
)
def test_the_workloads_reach_each_way_of_composing(way: str) -> None:
    def takes_it(workload: Workload) -> bool:
        traced: list[TracedScheduler] = []

        def new_scheduler(instance: Instance) -> TracedScheduler:
            traced.append(TracedScheduler(instance))
            return traced[-1]

        result(workload, new_scheduler, Driving())
        return way in traced[0].taken

    find(
        st.one_of(workloads(schedulings=("vllm",), with_speculation=False), usual_workloads()),
        takes_it,
        settings=settings(max_examples=2000, phases=[Phase.generate], derandomize=True, deadline=None),
    )
