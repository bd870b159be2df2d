"""Laws that hold for every workload with the engines whose rules compose one batch after the other."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blis_sim.engine.config import refusal_reason
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepDone, StepsDone
from blis_sim.engine.sequence import Outcome
from blis_sim.wings.vidur.rules import RULES
from tests.examples import examples
from tests.strategies import GRID_US, PIPELINES, Workload, usual_workloads, workloads

MANY_STEPS = 20_000
EXAMPLES = examples(40)


@st.composite
def batched(draw: st.DrawFn) -> Workload:
    """Small and nasty workloads, and dense ones, for one of the engines."""
    engine = draw(st.sampled_from(sorted(RULES)))
    given_workload: Workload = draw(
        st.one_of(workloads(schedulings=(engine,), with_speculation=False), usual_workloads(engine))
    )
    changed = dict(given_workload.settings)
    if engine == "lightllm":
        changed["total_kv_blocks"] *= changed["block_size_tokens"]
        changed["block_size_tokens"] = 1
    elif draw(st.booleans()):
        changed["pipeline"] = draw(st.sampled_from(PIPELINES))
    return replace(given_workload, settings=changed)


def events_of(
    workload: Workload, reports_steps: bool = True, allows_multi_step: bool = False, stride_us: int = 0
) -> list[Event]:
    """All events of a run, advanced `stride_us` beyond each event that is due; the engine's laws hold all the time."""
    engine = Engine(workload.config(), workload.latency, reports_steps)
    for at, request in workload.arrivals:
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    events: list[Event] = []
    while (due_at := engine.next_event_at()) is not None:
        assume(len(engine.steps) < MANY_STEPS)
        events += engine.advance(due_at + stride_us, allows_multi_step)
        engine.check_integrity()
        assert engine.stats.kv_blocks_used <= engine.kv.num_blocks
    assert engine.stats.kv_blocks_used == engine.stats.num_running == engine.stats.num_waiting == 0
    return events


def lives(events: list[Event]) -> list[tuple[object, ...]]:
    """Return the outcomes of requests, as plain values."""
    return [
        (
            type(event).__name__,
            event.at,
            event.sequence.request.id,
            event.sequence.first_token_at,
            event.sequence.num_output_tokens,
            event.sequence.num_preemptions,
            event.sequence.token_runs,
            event.sequence.scheduled_at,
        )
        for event in events
        if isinstance(event, Scheduled | Preempted | Finished)
    ]


@settings(max_examples=EXAMPLES)
@given(batched())
def test_every_request_ends_once_with_all_its_tokens_in_the_order_of_time(workload: Workload) -> None:
    events = events_of(workload)
    assert [event.at for event in events] == sorted(event.at for event in events)
    ended = {event.sequence.request.id: event for event in events if isinstance(event, Finished)}
    assert sorted(ended) == sorted(request.id for _, request in workload.arrivals)
    assert sum(isinstance(event, Finished) for event in events) == len(workload.arrivals)
    tokens = dict.fromkeys(ended, 0)
    for event in events:
        if isinstance(event, StepDone):
            assert event.started_at < event.at
            for sequence in event.emitted:
                assert event.at > sequence.arrived_at
                tokens[sequence.request.id] += 1
    for request_id, event in ended.items():
        sequence, config = event.sequence, workload.config()
        if event.outcome is Outcome.DROPPED:
            assert refusal_reason(config, sequence.request.input_tokens, sequence.max_output_tokens) is not None
        elif event.outcome is Outcome.COMPLETED:
            assert tokens[request_id] == sequence.request.output_tokens == sequence.num_output_tokens
        elif event.outcome is Outcome.LENGTH_CAPPED:
            assert tokens[request_id] == sequence.num_output_tokens
            assert sequence.request.input_tokens + tokens[request_id] == config.limit_tokens


@settings(max_examples=EXAMPLES)
@given(batched(), st.sampled_from([1, 40, 700, GRID_US, 20 * GRID_US]))
def test_how_a_driver_advances_and_whether_steps_are_reported_changes_nothing(
    workload: Workload, stride_us: int
) -> None:
    reported = events_of(workload)
    expected = lives(reported)
    assert lives(events_of(workload, stride_us=stride_us)) == expected
    assert lives(events_of(workload, reports_steps=False, stride_us=100 * stride_us)) == expected
    together = events_of(workload, allows_multi_step=True, stride_us=100 * stride_us)
    assert lives(together) == expected
    assert token_instants(together) == token_instants(reported)


def token_instants(events: list[Event]) -> list[tuple[int, list[str]]]:
    """The end of each step, and which requests had a token from it."""
    found: list[tuple[int, list[str]]] = []
    for event in events:
        if isinstance(event, StepDone):
            found.append((event.at, sorted(each.request.id for each in event.emitted)))
        elif isinstance(event, StepsDone):
            found += [(at, sorted(each.request.id for each in event.emitted)) for at in event.ends]
    return sorted(found)
