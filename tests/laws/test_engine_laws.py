"""Invariants of every workload, named as in BLIS where it has a name for them."""

from collections import Counter

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from blis_sim.engine.config import refusal_reason
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import check_drafts_fit
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import BatchDone, CacheChanged, Event, Finished, StepDone, StepsDone
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Outcome
from tests.examples import examples
from tests.strategies import GRID_US, Workload, workloads

LONG_ENOUGH_US = 200_000_000
MANY_STEPS = 20_000


def drained(workload: Workload) -> tuple[Engine, list[Event]]:
    """The engine and all events of a run with hang-ups; workloads that never drain are discarded."""
    engine = workload.engine()
    for at, request in workload.arrivals:
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    events: list[Event] = []
    while (due_at := engine.next_event_at()) is not None:
        assume(due_at < LONG_ENOUGH_US and len(engine.steps) < MANY_STEPS)
        events.extend(engine.advance(due_at))
        engine.check_integrity()
        assert engine.last_shape.num_tokens <= engine.config.max_num_batched_tokens
        assert engine.last_shape.num_requests <= engine.config.max_num_seqs
    return engine, events


def in_pieces(workload: Workload, pauses: list[int]) -> list[Event]:
    """All events of an engine that gets everything only shortly before, and is advanced by these half grid steps."""
    engine = workload.engine()
    todo: list[tuple[int, int, Request | str]] = [(at, 0, request) for at, request in workload.arrivals]
    todo += [(at, 1, request_id) for at, request_id in workload.hang_ups]
    todo.sort(key=lambda entry: entry[:2])
    events: list[Event] = []
    now, turn = -1, 0
    while todo or engine.next_event_at() is not None:
        until = now + pauses[turn % len(pauses)] * GRID_US // 2
        turn += 1
        while todo and todo[0][0] <= until:
            at, _, what = todo.pop(0)
            if isinstance(what, Request):
                engine.submit(what, at)
            else:
                engine.abort(what, at)
        events.extend(engine.advance(until))
        now = until
    return events


def reported(events: list[Event]) -> list[tuple[object, ...]]:
    """Events as plain values, with the state of the sequences at that instant."""
    lines: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, StepDone):
            numbers = [(s.request.id, s.tokens_at(event.index)) for s in event.emitted]
            lines.append(("step", event.at, event.index, event.started_at, numbers))
        elif isinstance(event, Finished):
            lines.append(("finished", event.at, event.sequence.request.id, event.outcome, event.detail))
        elif isinstance(event, CacheChanged):
            lines.append(("cache", event.at, event.changes))
        else:
            assert not isinstance(event, StepsDone | BatchDone), "reported on request only"
            lines.append((type(event).__name__, event.at, event.sequence.request.id))
    return lines


def ends_every_request_once(workload: Workload, engine: Engine, events: list[Event]) -> None:
    """INV-1: nothing is lost and nothing counted twice."""
    ended = sorted(event.sequence.request.id for event in events if isinstance(event, Finished))
    assert ended == sorted(request.id for _, request in workload.arrivals)
    assert sum(engine.counters.ended.values()) == len(workload.arrivals)


def happens_in_order(events: list[Event]) -> None:
    """INV-3: the clock never goes back."""
    instants = [event.at for event in events]
    assert instants == sorted(instants)


def has_causes_before_effects(events: list[Event]) -> None:
    """INV-5: arrival <= schedule <= first token <= end."""
    for event in events:
        sequence = event.sequence if isinstance(event, Finished) else None
        if sequence is None or sequence.outcome not in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED):
            continue
        assert sequence.scheduled_at is not None
        assert sequence.first_token_at is not None
        assert sequence.arrived_at <= sequence.scheduled_at < sequence.first_token_at <= event.at


@pytest.mark.slow
@given(workloads(with_cpu_tier=True, with_pipeline=True), st.lists(st.integers(1, 8), min_size=1, max_size=8))
@settings(max_examples=examples(200))
def test_every_run_keeps_the_laws_however_often_and_late_its_driver_wakes(
    workload: Workload, pauses: list[int]
) -> None:
    """Also INV-4: no block is in use at the end. INV-6: a second run, in pieces, has the events of the first."""
    engine, events = drained(workload)
    ends_every_request_once(workload, engine, events)
    happens_in_order(events)
    has_causes_before_effects(events)
    assert engine.stats.kv_blocks_used == 0
    assert reported(in_pieces(workload, pauses)) == reported(events)


@pytest.mark.slow
@given(workloads(with_cpu_tier=True, with_pipeline=True))
def test_an_engine_with_work_never_idles(workload: Workload) -> None:
    """INV-8: while a request waits or runs, something is due, in deployments whose drafts fit into a step."""
    engine = workload.engine()
    try:
        check_drafts_fit(engine.config)
    except EngineError:
        reject()
    for at, request in workload.arrivals:
        engine.submit(request, at)
    while (due_at := engine.next_event_at()) is not None:
        assume(due_at < LONG_ENOUGH_US and len(engine.steps) < MANY_STEPS)
        engine.advance(due_at)
        if engine.stats.num_waiting or engine.stats.num_running:
            assert engine.next_event_at() is not None


@given(workloads(schedulings=("blis",)), st.integers(0, 500), st.integers(0, 500))
def test_refusal_sees_only_what_the_client_declared(workload: Workload, input_tokens: int, budget: int) -> None:
    """INV-9: the true output length is not an argument of the guards, so equal declarations fare equally."""
    config = workload.engine().config
    reason = refusal_reason(config, input_tokens, budget)
    fits = -(-input_tokens // config.block_size_tokens) <= config.total_kv_blocks
    within = not config.max_model_len or (
        input_tokens < config.max_model_len and (budget == 0 or input_tokens + budget <= config.max_model_len)
    )
    assert (reason is None) == (fits and within)


@given(workloads(with_hang_ups=False, with_cpu_tier=True))
def test_a_first_token_needs_the_whole_prompt(workload: Workload) -> None:
    """A preempted sequence may have tokens of a step on its way, so only the others are judged."""
    engine = Engine(workload.config(), workload.latency, reports_batches=True)
    for at, request in workload.arrivals:
        engine.submit(request, at)
    num_computed: Counter[str] = Counter()
    while (due_at := engine.next_event_at()) is not None:
        assume(due_at < LONG_ENOUGH_US and len(engine.steps) < MANY_STEPS)
        for event in engine.advance(due_at):
            if isinstance(event, BatchDone):
                num_computed.update({each.request.id: num_tokens for each, num_tokens in event.prompts})
            elif isinstance(event, StepDone):
                assert all(each.tokens_at(event.index) >= 1 for each in event.emitted)
                for each in event.emitted:
                    if each.first_token_step == event.index and not each.num_preemptions:
                        known = each.num_cached_tokens + num_computed[each.request.id]
                        assert known >= each.request.input_tokens
