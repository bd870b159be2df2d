"""The fast path gives what the plain one defines: every figure of every request, every step, every counter."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.units import Micros
from tests.examples import examples
from tests.strategies import Workload, usual_workloads, workloads

MANY_STEPS = 20_000
EXAMPLES = examples(100)


def outcome(workload: Workload, reports_steps: bool, allows_multi_step: bool = False) -> dict[str, object]:
    """All that can be known of a run, as plain values."""
    engine = Engine(workload.config(), workload.latency, reports_steps)
    for at, request in workload.arrivals:
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    reported: list[tuple[object, ...]] = []
    while (due_at := engine.next_event_at()) is not None:
        assume(len(engine.steps) < MANY_STEPS)
        reported += [
            (type(event).__name__, event.at, event.sequence.request.id, figures(event))
            for event in engine.advance(due_at + 40_000, allows_multi_step)
            if isinstance(event, Scheduled | Preempted | Finished)
        ]
        engine.check_integrity()
    return {
        "reported": reported,
        "starts": [engine.steps.start(index) for index in range(len(engine.steps))],
        "ends": [engine.steps.end(index) for index in range(len(engine.steps))],
        "counters": engine.counters,
        "stats": engine.stats,
        "clock": engine.clock,
        "last_shape": engine.last_shape,
    }


def figures(event: Scheduled | Preempted | Finished) -> object:
    if not isinstance(event, Finished):
        return None
    sequence = event.sequence
    return (
        event.outcome,
        sequence.scheduled_at,
        sequence.first_token_at,
        sequence.num_output_tokens,
        sequence.num_preemptions,
        sequence.token_runs,
    )


def assert_same(plain: dict[str, object], other: dict[str, object]) -> None:
    """One by one, so that what differs is named."""
    for key, expected in plain.items():
        assert other[key] == expected, key


@pytest.mark.slow
@given(st.one_of(workloads(schedulings=("vllm", "blis"), with_speculation=False), usual_workloads()))
@settings(max_examples=EXAMPLES)
def test_scheduling_is_the_same_fast_and_plain(workload: Workload) -> None:
    """With the scheduler that an engine chooses; `test_cohort` compares every way of composing and reporting."""
    assert_same(outcome(workload, reports_steps=True), outcome(workload, reports_steps=False))


def tokens(workload: Workload, allows_multi_step: bool) -> list[tuple[Micros, str, int]]:
    """When which request had how many tokens, as steps report it."""
    engine = Engine(workload.config(), workload.latency)
    for at, request in workload.arrivals:
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    reported: list[tuple[Micros, str, int]] = []
    while (due_at := engine.next_event_at()) is not None:
        assume(len(engine.steps) < MANY_STEPS)
        for event in engine.advance(due_at + 100_000, allows_multi_step):
            if isinstance(event, StepDone):
                assert event.started_at == engine.steps.start(event.index)
                reported += [(event.at, each.request.id, each.tokens_at(event.index)) for each in event.emitted]
            elif isinstance(event, StepsDone):
                for index, at in enumerate(event.ends, event.first):
                    reported += [(at, each.request.id, each.tokens_at(index)) for each in event.emitted]
    return reported


@pytest.mark.slow
@given(workloads(schedulings=("vllm",)))
@settings(max_examples=EXAMPLES)
def test_steps_reported_together_equal_those_reported_one_by_one(workload: Workload) -> None:
    assert_same(outcome(workload, reports_steps=True), outcome(workload, reports_steps=True, allows_multi_step=True))
    assert tokens(workload, allows_multi_step=True) == tokens(workload, allows_multi_step=False)
