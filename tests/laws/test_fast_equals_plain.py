"""The fast path gives what the plain one defines: every figure of every request, every step, every counter."""

import os

from hypothesis import assume, given, settings

from engine.core import Engine
from engine.events import Finished, Preempted, Scheduled
from tests.strategies import Workload, workloads

MANY_STEPS = 20_000
EXAMPLES = int(os.environ.get("BLIS_FAST_EXAMPLES", "200"))
"""More for a long sitting."""


def outcome(workload: Workload, reports_steps: bool) -> dict[str, object]:
    """All that can be known of a run, as plain values."""
    engine = Engine(workload.config(), workload.latency, reports_steps)
    for at, request in workload.arrivals:
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    told: list[tuple[object, ...]] = []
    while (due_at := engine.next_event_at()) is not None:
        assume(len(engine.steps) < MANY_STEPS)
        told += [
            (type(event).__name__, event.at, event.sequence.request.id, _figures(event))
            for event in engine.advance(due_at + 40_000)
            if isinstance(event, Scheduled | Preempted | Finished)
        ]
        engine.check_integrity()
    return {
        "told": told,
        "starts": [engine.steps.start(index) for index in range(len(engine.steps))],
        "ends": [engine.steps.end(index) for index in range(len(engine.steps))],
        "counters": engine.counters,
        "stats": engine.stats,
        "clock": engine.clock,
    }


def _figures(event: Scheduled | Preempted | Finished) -> object:
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


@given(workloads(schedulings=("vllm",), with_speculation=False))
@settings(max_examples=EXAMPLES)
def test_vllm_scheduling_is_the_same_fast_and_plain(workload: Workload) -> None:
    plain, fast = outcome(workload, reports_steps=True), outcome(workload, reports_steps=False)
    for key, expected in plain.items():
        assert fast[key] == expected, key


@given(workloads(schedulings=("blis",)))
@settings(max_examples=EXAMPLES)
def test_blis_scheduling_is_the_same_fast_and_plain(workload: Workload) -> None:
    plain, fast = outcome(workload, reports_steps=True), outcome(workload, reports_steps=False)
    for key, expected in plain.items():
        assert fast[key] == expected, key
