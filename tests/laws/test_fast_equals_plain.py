"""The fast path gives what the plain one defines: every figure of every request, every step, every counter."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.request import ExternalPrompt
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from tests.examples import examples
from tests.strategies import GRID_US, Workload, usual_workloads, workloads

MANY_STEPS = 20_000
EXAMPLES = examples(200)


def outcome(
    workload: Workload, reports_steps: bool, transfer_us: Micros | None = None, allows_multi_step: bool = False
) -> dict[str, object]:
    """All that can be known of a run, as plain values.

    With a time for transfers, every second prompt that finds room has been computed elsewhere.
    """
    engine = Engine(workload.config(), workload.latency, reports_steps)
    reserved = []
    for number, (at, request) in enumerate(workload.arrivals):
        if transfer_us is None or number % 2:
            engine.submit(request, at)
        else:
            engine.advance(at - 1)
            sequence = Sequence(request, at)
            if request.input_tokens and engine.reserve(sequence):
                engine.enqueue_reserved(sequence, at + transfer_us)
                reserved.append(sequence)
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
        "reserved": [(each.outcome, each.num_blocks or len(each.block_ids)) for each in reserved],
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
@given(workloads(schedulings=("vllm",), with_speculation=False))
@settings(max_examples=EXAMPLES)
def test_vllm_scheduling_is_the_same_fast_and_plain(workload: Workload) -> None:
    assert_same(outcome(workload, reports_steps=True), outcome(workload, reports_steps=False))


@pytest.mark.slow
@given(usual_workloads())
@settings(max_examples=EXAMPLES)
def test_fast_equals_plain_where_nearly_every_request_only_decodes(workload: Workload) -> None:
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


@pytest.mark.slow
@given(workloads(schedulings=("blis",)))
@settings(max_examples=EXAMPLES)
def test_blis_scheduling_is_the_same_fast_and_plain(workload: Workload) -> None:
    assert_same(outcome(workload, reports_steps=True), outcome(workload, reports_steps=False))


@pytest.mark.slow
@given(
    workloads(schedulings=("blis",), with_hang_ups=False),
    st.sampled_from([1, GRID_US, 3 * GRID_US]),
)
@settings(max_examples=EXAMPLES)
def test_blis_scheduling_is_the_same_fast_and_plain_with_prompts_computed_elsewhere(
    workload: Workload, transfer_us: Micros
) -> None:
    assert_same(outcome(workload, True, transfer_us), outcome(workload, False, transfer_us))


@pytest.mark.slow
@given(workloads(schedulings=("vllm",), with_speculation=False), st.lists(st.integers(0, 3), min_size=12, max_size=12))
@settings(max_examples=EXAMPLES)
def test_fast_equals_plain_with_vllm_for_prompts_computed_by_others(workload: Workload, transfers: list[int]) -> None:
    """Every fourth, on average, comes without a transfer: its prompt is computed here."""
    arrivals = [
        (at, request._replace(external=ExternalPrompt(request.input_tokens, ticks * GRID_US)) if ticks else request)
        for (at, request), ticks in zip(workload.arrivals, transfers, strict=False)
    ]
    told_so = replace(workload, arrivals=arrivals)
    assert_same(outcome(told_so, reports_steps=True), outcome(told_so, reports_steps=False))
