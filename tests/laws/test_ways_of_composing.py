"""The random workloads of the laws reach each way of composing steps.

A subclass watches them, which a compiled scheduler cannot have.
"""

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from blis_sim.engine.context import EngineContext
from blis_sim.engine.scheduler.batch import BatchScheduler
from blis_sim.engine.scheduler.blis import BlisScheduler
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from tests.examples import examples
from tests.laws.test_cohort import Driving, result
from tests.strategies import GRID_US, Workload, talks, usual_workloads, workloads


class Traced(BatchScheduler):
    """Notes which ways of composing steps a run takes."""

    taken: set[str]

    def compose_newcomers(self, at: Micros) -> bool:
        joins = super().compose_newcomers(at)
        self.taken.add("newcomers" if joins else "no newcomers")
        return joins

    def schedule(self, at: Micros) -> bool:
        has_members, has_others = bool(self.cohort.members), bool(self.explicit)
        is_scheduled = super().schedule(at)  # type: ignore[safe-super]
        if has_members and has_others and is_scheduled:
            self.taken.add("cohort and others")
        if not is_scheduled or not (self.in_flight[-1][0] or self.in_flight[-1][2]):
            self.taken.add("nothing")
        if any(each.num_tokens == 0 for each in self.in_flight[-1][2]) if self.in_flight else False:
            self.taken.add("a prompt found whole")
        return is_scheduled

    def fill_blocks(self, first_step: int, end: int) -> None:
        super().fill_blocks(first_step, end)
        self.taken.add("blocks filled in a step" if end == first_step + 1 else "blocks filled in a leap")

    def _fills_in_admission_order(self) -> bool:
        is_first = super()._fills_in_admission_order()
        if not is_first:
            self.taken.add("blocks filled in order of admission")
        return is_first

    def dissolve_cohort(self) -> None:
        if self.cohort.members:
            self.taken.add("a dissolved cohort")
        super().dissolve_cohort()

    def leave_cohort(self, sequence: Sequence) -> None:
        super().leave_cohort(sequence)  # type: ignore[safe-super]
        if self._late:
            self.taken.add("late tokens")

    def preempt(self, victim: Sequence) -> None:
        self.taken.add("preemption")
        if self.cohort.members:
            self.taken.add("preemption beside the cohort")
        super().preempt(victim)  # type: ignore[safe-super]

    def takes_reservation(self, sequence: Sequence) -> bool:
        takes = super().takes_reservation(sequence)
        if takes:
            self.taken.add("a reservation taken")
        return takes

    def _note_blocked(self, sequence: Sequence, num_hits: int) -> None:
        super()._note_blocked(sequence, num_hits)
        is_blocked = self._blocked is not None and self._blocked[0] is sequence
        self.taken.add("blocked" if is_blocked else "not blocked")

    def _take_many_steps(
        self, at: Micros, last: Micros, most: int, instants: list[Micros]
    ) -> tuple[Micros, Micros, int, int]:
        num_decodes = self.cohort.num_decodes
        taken = super()._take_many_steps(at, last, most, instants)
        self.taken.add("leap" if num_decodes == self.cohort.num_decodes else "leap to a foreseen end")
        return taken


class TracedVllm(Traced, VllmScheduler):
    """vLLM's rules."""

    def __init__(self, context: EngineContext) -> None:
        VllmScheduler.__init__(self, context, reports_steps=False)
        self.taken = set()


class TracedBlis(Traced, BlisScheduler):
    """BLIS's rules."""

    def __init__(self, context: EngineContext) -> None:
        BlisScheduler.__init__(self, context, reports_steps=False)
        self.taken = set()


WAYS = (
    *("newcomers", "no newcomers", "cohort and others", "nothing", "a dissolved cohort", "blocked", "not blocked"),
    *("preemption", "preemption beside the cohort", "leap", "leap to a foreseen end"),
)
FILLING = ("blocks filled in a step", "blocks filled in a leap", "blocks filled in order of admission")


OF_RULES = {"vllm": {*WAYS, *FILLING, "late tokens"}, "blis": {*WAYS, "a prompt found whole", "a reservation taken"}}


@pytest.mark.slow
@pytest.mark.parametrize("scheduling", OF_RULES)
def test_the_workloads_reach_each_way_of_composing(scheduling: str) -> None:
    """Workloads are drawn until each way has been taken; a third of BLIS's have prompts computed elsewhere."""
    left = set(OF_RULES[scheduling])

    def leaves_none(workload: Workload, has_reservations: bool) -> bool:
        traced: list[Traced] = []

        def new_scheduler(context: EngineContext) -> Traced:
            traced.append(TracedVllm(context) if scheduling == "vllm" else TracedBlis(context))
            return traced[-1]

        result(workload, new_scheduler, Driving(transfer_us=GRID_US if has_reservations else None))
        left.difference_update(traced[0].taken)
        return not left

    small = partial(workloads, schedulings=(scheduling,), with_speculation=False)
    plain = st.one_of(small(True), usual_workloads(scheduling), *([talks()] if scheduling == "vllm" else []))
    given_workloads = st.tuples(plain, st.just(False))
    if scheduling == "blis":  # without hang-ups, which come before a reservation
        given_workloads = st.one_of(given_workloads, st.tuples(small(False), st.just(True)))
    with suppress(NoSuchExample):
        find(
            given_workloads,
            lambda drawn: leaves_none(*drawn),
            settings=settings(max_examples=examples(6000), phases=[Phase.generate], derandomize=True, deadline=None),
        )
    assert not left
