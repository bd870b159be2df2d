"""The schedulers give equal results with and without a decode cohort, and in every way of reporting steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blis_sim.engine.context import EngineContext
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.offloading import CpuTierConfig
from blis_sim.engine.request import ExternalPrompt
from blis_sim.engine.scheduler.blis import BlisScheduler, TieredBlisScheduler
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from tests.examples import examples
from tests.fakes import TestLatency
from tests.fakes import request as new_request
from tests.laws.test_fast_equals_plain import assert_same, figures
from tests.strategies import GRID_US, Workload, talks, usual_workloads, workloads

MANY_STEPS = 20_000
EXAMPLES = examples(100)

NewScheduler = Callable[[EngineContext], Any]


@dataclass(frozen=True, slots=True)
class Interference:
    """Actions of an operator on an engine once it has been advanced so far."""

    at: Micros
    hold: PauseState | None = None
    preempts: bool = False
    num_withheld_blocks: int = 0

    def act(self, engine: Engine) -> None:
        if self.hold is not None:
            engine.hold(self.hold, self.at + 1)
        elif self.preempts:
            engine.reset_prefix_cache(self.at + 1, preempts_running=True)
        else:
            engine._scheduler.shrink_cache(self.num_withheld_blocks, self.at + 1)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Driving:
    """How a driver advances an engine: how far each time, and whether steps may be reported together."""

    chunk_us: Micros = 40_000
    allows_multi_step: bool = False
    interferences: tuple[Interference, ...] = ()
    transfer_us: Micros | None = None
    """How long transfers of prompts take that were computed elsewhere. BLIS's rules only; None without such prompts."""


def submit(workload: Workload, engine: Engine, driving: Driving) -> list[Event]:
    """Let the requests of a workload arrive; those of even number that find room with a prompt computed elsewhere.

    Every third of these prompts does not come after all, which shows when the next request arrives.
    """
    events: list[Event] = []
    if driving.transfer_us is None:
        engine.submit_all([request for _, request in workload.arrivals], [at for at, _ in workload.arrivals])
        return events
    given_up: list[Sequence] = []
    for number, (at, request) in enumerate(workload.arrivals):
        events += engine.advance(at - 1, driving.allows_multi_step)
        while given_up:
            engine._scheduler.release_reservation(given_up.pop())  # type: ignore[attr-defined]
        sequence = Sequence(request, at)
        if number % 2 or not request.input_tokens or not engine._scheduler.reserve(sequence):  # type: ignore[attr-defined]
            engine.submit(request, at)
        elif number % 6:
            engine.enqueue_reserved(sequence, at + driving.transfer_us)
        else:
            given_up.append(sequence)
    for sequence in given_up:
        engine._scheduler.release_reservation(sequence)  # type: ignore[attr-defined]
    return events


def result(workload: Workload, new_scheduler: NewScheduler, driving: Driving) -> dict[str, object]:
    """Everything that can be observed of a run, as plain values."""
    engine = Engine(workload.config(), workload.latency)
    engine._scheduler = new_scheduler(engine._context)
    events = [submit(workload, engine, driving)]
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    for interference in driving.interferences:
        if engine.now is None or interference.at >= engine.now:
            events.append(engine.advance(interference.at, driving.allows_multi_step))
            interference.act(engine)
    if driving.interferences:
        if workload.settings["engine"] == "vllm":
            engine._scheduler.shrink_cache(0, driving.interferences[-1].at + 2)  # type: ignore[attr-defined]
        engine.hold(PauseState.NONE, driving.interferences[-1].at + 2)
    while (due_at := engine.next_event_at()) is not None:
        assume(len(engine.steps) < MANY_STEPS)
        events.append(engine.advance(due_at + driving.chunk_us, driving.allows_multi_step))
        engine.check_integrity()
    reported = list(chain.from_iterable(events))
    return {
        "reported": [
            (type(event).__name__, event.at, event.sequence.request.id, figures(event))
            for event in reported
            if isinstance(event, Scheduled | Preempted | Finished)
        ],
        "tokens": list(chain.from_iterable(map(tokens, reported))),
        "starts": [engine.steps.start(index) for index in range(len(engine.steps))],
        "ends": [engine.steps.end(index) for index in range(len(engine.steps))],
        "counters": engine.counters,
        "stats": engine.stats,
        "clock": engine.clock,
        "last_shape": engine.last_shape,
        "cache": (engine.kv.hit_tokens, engine.kv.queried_tokens),
    }


def tokens(event: Event) -> list[tuple[Micros, str, int]]:
    """When which request had how many tokens, as steps report it."""
    if isinstance(event, StepDone):
        return [(event.at, each.request.id, each.tokens_at(event.index)) for each in event.emitted]
    if isinstance(event, StepsDone):
        return [
            (at, each.request.id, each.tokens_at(index))
            for index, at in enumerate(event.ends, event.first)
            for each in event.emitted
        ]
    return []


def plainly(workload: Workload, driving: Driving) -> dict[str, object]:
    """The result of composing every step for each sequence by itself, and of reporting it."""
    scheduler = VllmScheduler if workload.settings["engine"] == "vllm" else BlisScheduler
    return result(workload, partial(scheduler, reports_steps=True, has_cohort=False), driving)


def check(workload: Workload, driving: Driving) -> None:
    """Compare the plain way of the scheduler with each other one."""
    scheduler = VllmScheduler if workload.settings["engine"] == "vllm" else BlisScheduler
    expected = plainly(workload, driving)
    for has_cohort, allows_multi_step in ((False, True), (True, False), (True, True)):
        reporting = replace(driving, allows_multi_step=allows_multi_step)
        assert_same(
            expected, result(workload, partial(scheduler, reports_steps=True, has_cohort=has_cohort), reporting)
        )
    for has_cohort in (False, True):
        silent = result(workload, partial(scheduler, reports_steps=False, has_cohort=has_cohort), driving)
        assert_same(expected | {"tokens": []}, silent)


CHUNKS = st.sampled_from([0, 1000, 40_000, 10**9])


@pytest.mark.slow
@given(workloads(schedulings=("blis",)), CHUNKS)
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_of_the_rules_of_blis(workload: Workload, chunk_us: Micros) -> None:
    check(workload, Driving(chunk_us))


@pytest.mark.slow
@given(
    workloads(schedulings=("blis",), with_hang_ups=False),
    st.sampled_from([1, GRID_US, 3 * GRID_US]),
    st.sampled_from([0, 40_000]),
)
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_of_the_rules_of_blis_with_prompts_computed_elsewhere(
    workload: Workload, transfer_us: Micros, chunk_us: Micros
) -> None:
    check(workload, Driving(chunk_us, transfer_us=transfer_us))


@given(st.just(1))
@settings(max_examples=1)
def test_the_last_in_the_order_of_the_queue_of_prompts_computed_elsewhere_loses_its_blocks(transfer_us: Micros) -> None:
    urgent = new_request("c urgent", 1, 0)._replace(priority=-1)
    others = [new_request("b running", 0, 16), urgent, new_request("d", 0, 0), new_request("e other", 3, 0)]
    arrivals = [(0, new_request("a", 0, 0)), *((500, each) for each in others)]
    settings_ = {
        "total_kv_blocks": 18,
        "block_size_tokens": 1,
        "max_num_seqs": 1,
        "max_num_batched_tokens": 1,
        "scheduler": "reverse-priority",
        "engine": "blis",
    }
    workload = Workload(settings_, TestLatency(step_us=1), arrivals, [])
    expected = plainly(workload, Driving(transfer_us=transfer_us))
    reported = expected["reported"]
    assert isinstance(reported, list)
    # The only one that runs loses its own blocks once; the second time nothing else could have gone on.
    assert [line[2] for line in reported if line[0] == "Preempted"] == ["b running", "c urgent"]
    check(workload, Driving(transfer_us=transfer_us))


@pytest.mark.slow
@given(usual_workloads("blis"), CHUNKS)
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_of_the_rules_of_blis_where_nearly_all_sequences_only_decode(
    workload: Workload, chunk_us: Micros
) -> None:
    check(workload, Driving(chunk_us))


@pytest.mark.slow
@given(workloads(schedulings=("blis",), with_cpu_tier=True), CHUNKS)
@settings(max_examples=EXAMPLES)
def test_with_a_cpu_tier_steps_are_the_same_however_they_are_reported(workload: Workload, chunk_us: Micros) -> None:
    tier: CpuTierConfig = workload.settings["cpu_tier"]
    assume(tier is not None)
    driving, scheduler = Driving(chunk_us), partial(TieredBlisScheduler, tier=tier)
    expected = result(workload, partial(scheduler, reports_steps=True), driving)
    assert_same(expected, result(workload, partial(scheduler, reports_steps=True), Driving(chunk_us, True)))
    assert_same(expected | {"tokens": []}, result(workload, partial(scheduler, reports_steps=False), driving))


@pytest.mark.slow
@given(workloads(schedulings=("vllm",), with_speculation=False), CHUNKS)
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result(workload: Workload, chunk_us: Micros) -> None:
    check(workload, Driving(chunk_us))


@pytest.mark.slow
@given(usual_workloads(), CHUNKS)
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_where_nearly_all_sequences_only_decode(
    workload: Workload, chunk_us: Micros
) -> None:
    check(workload, Driving(chunk_us))


@pytest.mark.slow
@given(talks(), CHUNKS)
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_where_requests_find_the_replies_of_others(
    workload: Workload, chunk_us: Micros
) -> None:
    check(workload, Driving(chunk_us))


@pytest.mark.slow
@given(workloads(schedulings=("vllm",), with_speculation=False), st.lists(st.integers(0, 3), min_size=12, max_size=12))
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_with_prompts_computed_elsewhere(workload: Workload, transfers: list[int]) -> None:
    """Every fourth prompt, on average, comes without a transfer and is computed here."""
    arrivals = [
        (at, request._replace(external=ExternalPrompt(request.input_tokens, ticks * GRID_US)) if ticks else request)
        for (at, request), ticks in zip(workload.arrivals, transfers, strict=False)
    ]
    check(replace(workload, arrivals=arrivals), Driving())


@st.composite
def interferences(draw: st.DrawFn, withholds: bool = True) -> tuple[Interference, ...]:
    instants = sorted(draw(st.lists(st.integers(0, 400).map(lambda tick: tick * 100), min_size=1, max_size=6)))
    kinds = st.one_of(
        st.builds(Interference, st.just(0), hold=st.sampled_from(PauseState)),
        st.just(Interference(0, preempts=True)),
        *([st.builds(Interference, st.just(0), num_withheld_blocks=st.sampled_from([0, 5, 100]))] if withholds else []),
    )
    return tuple(replace(draw(kinds), at=at) for at in instants)


@pytest.mark.slow
@given(st.one_of(workloads(schedulings=("vllm",), with_speculation=False), usual_workloads(), talks()), interferences())
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_under_holds_resets_and_withheld_blocks(
    workload: Workload, interfering: tuple[Interference, ...]
) -> None:
    check(workload, Driving(interferences=interfering))


@given(st.just(TestLatency(step_us=500)))
@settings(max_examples=1)
def test_a_deferred_request_that_its_step_in_flight_completes_is_deferred_no_more(latency: TestLatency) -> None:
    limits = {"total_kv_blocks": 10, "max_num_batched_tokens": 2, "engine": "vllm", "async_scheduling": True}
    workload = Workload(limits, latency, [(0, new_request("r0", 21, 1))], [])
    driving = Driving(interferences=(Interference(4800, preempts=True),))
    expected = plainly(workload, driving)
    stats = expected["stats"]
    assert isinstance(stats, EngineStats)
    assert (stats.num_preemptions, stats.num_waiting, stats.num_deferred) == (1, 0, 0)
    check(workload, driving)


@pytest.mark.slow
@given(st.one_of(workloads(schedulings=("blis",)), usual_workloads("blis")), interferences(withholds=False))
@settings(max_examples=EXAMPLES)
def test_a_cohort_changes_no_result_of_the_rules_of_blis_under_holds_and_resets(
    workload: Workload, interfering: tuple[Interference, ...]
) -> None:
    check(workload, Driving(interferences=interfering))
