"""The record of a run: one entry per request that has arrived, with the numbers of its tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, StepDone
from replay.arrivals import Arrival
from replay.simulation.record import COMPLETED, NEVER, TokenCounts
from replay.simulation.simulate import Simulated, simulate
from tests.examples import examples
from tests.fakes import request
from tests.replay.generated_requests import sent
from tests.replay.labelled_runs import HORIZON_US, labelled_runs, ran
from tests.replay.simulation.test_output_queue import InTurn
from tests.replay.small_traces import row
from tests.replay.step_by_step import drained
from tests.strategies import Workload, workloads


def test_a_row_of_a_trace_keeps_its_number_and_a_generated_request_has_its_place() -> None:
    run = ran((0, request("a"), {}))
    assert [each.number for each in run.requests] == [0]
    engine = Engine(run.engine.config, run.engine.latency)
    arrivals = [Arrival(0, request("a"), row(7)), Arrival(1, request("b"), sent(1))]
    assert [each.number for each in simulate(engine, arrivals).requests] == [7, 1]


def test_columns_equal_entries() -> None:
    record = ran(
        (0, request("a"), {}), (5, request("b", input_tokens=10_000), {}), (5_000, request("c", 9), {})
    ).requests
    assert record.arrived_at.tolist() == [each.arrived_at for each in record] == [0, 5, 5_000]
    assert record.ttft_us.tolist() == [1_000, NEVER, 1_000]
    assert [each.ttft_us for each in record] == [1_000, None, 1_000]
    assert record.is_completed.tolist() == [each.is_completed for each in record] == [True, False, True]
    assert record.itl_mean_us.tolist() == [each.itl_mean_us for each in record] == [1_000, 0, 1_000]


def test_places_by_id_follow_the_text_of_ids() -> None:
    run = ran(*((number, request(f"request_{number}"), {}) for number in range(12)))
    assert run.requests.by_id.tolist() == [0, 1, 10, 11, *range(2, 10)]


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
@given(workload=workloads(with_hang_ups=False, with_speculation=False))
@settings(max_examples=examples(60), deadline=None)
def test_token_times_are_those_of_the_tokens_one_by_one(scheduling: str, workload: Workload) -> None:
    workload.settings["engine"] = scheduling
    if scheduling == "vllm":
        workload.settings["total_kv_blocks"] = int(workload.settings["total_kv_blocks"]) + 1
    engine, events = drained(workload)
    reported: dict[int, list[int]] = {}
    arrivals = [Arrival(at, each, row(number)) for number, (at, each) in enumerate(workload.arrivals)]
    simulate(
        workload.engine(), arrivals, on_tokens=lambda number, times_us: reported.update({number: times_us.tolist()})
    )
    assert reported == {
        number: times_one_by_one(engine, events, each.id)
        for number, (_, each) in enumerate(workload.arrivals)
        if any(
            isinstance(event, Finished) and event.outcome in COMPLETED and _is_of(event, each.id) for event in events
        )
    }


def times_one_by_one(engine: Engine, events: list[Event], request_id: str) -> list[int]:
    """When the tokens of a request that stayed arrived at its client, from the events alone."""
    steps: list[StepDone] = []
    for event in events:
        if isinstance(event, StepDone) and any(each.request.id == request_id for each in event.emitted):
            steps.append(event)
        elif isinstance(event, Preempted) and _is_of(event, request_id) and engine.config.engine == "blis":
            steps = []  # all tokens are generated again
    overhead_us = engine.latency.output_token_time
    if engine.config.engine == "vllm":
        return [step.at + overhead_us for step in steps]
    times_us = [step.at + overhead_us for step in steps[:1]]
    for step in steps[1:]:
        times_us.append(times_us[-1] + step.at - step.started_at + overhead_us)
    return times_us


def _is_of(event: Finished | Preempted, request_id: str) -> bool:
    return event.sequence.request.id == request_id


@given(labelled_runs())
@settings(max_examples=examples(60), deadline=None)
def test_a_request_that_completes_has_all_its_latencies(run: Simulated) -> None:
    for each in run.requests:
        assert each.is_completed == (each.e2e_us is not None)
        if each.e2e_us is not None:
            assert each.ttft_us is not None
            assert each.scheduling_delay_us is not None
            assert 0 <= each.scheduling_delay_us <= each.ttft_us <= each.e2e_us
            assert each.output_tokens <= each.planned_output_tokens


@given(workloads(with_hang_ups=False), st.integers(1, 7), st.sampled_from([0.0, 3.0, 400.0]))
@settings(max_examples=examples(60), deadline=None)
def test_tokens_counted_in_portions_are_the_same_tokens(workload: Workload, at_once: int, turn_us: float) -> None:
    def figures() -> list[object]:
        engine = Engine(workload.config(), InTurn(workload.latency, turn_us), reports_steps=False)
        arrivals = [Arrival(at, each, row(number)) for number, (at, each) in enumerate(workload.arrivals)]
        record = simulate(engine, arrivals, HORIZON_US).requests
        tokens, gaps = record.tokens, record.tokens.gaps()
        busy_us = [tokens.busy_us(0, since, HORIZON_US // 2) for since in range(0, 10_000, 700)]
        return [list(record), gaps.values_us.tolist(), gaps.cumulative.tolist(), tokens.steps_waited(0), busy_us]

    in_the_end = figures()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replay.simulation.record.REPORT_BATCH_SIZE", 1)
        patch.setattr("replay.simulation.record.COUNT_BATCH_SIZE", at_once)
        patch.setattr("replay.simulation.record.STEPS_LEFT", 3)
        patch.setattr("replay.simulation.record.STEPS_AT_ONCE", at_once)
        assert figures() == in_the_end


def test_steps_whose_tokens_are_counted_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.simulation.record.REPORT_BATCH_SIZE", 1)
    monkeypatch.setattr("replay.simulation.record.COUNT_BATCH_SIZE", 10)
    monkeypatch.setattr("replay.simulation.record.STEPS_LEFT", 3)
    run = ran(*((number * 100_000, request(f"request_{number}", output_tokens=9), {}) for number in range(1_000)))
    assert len(run.engine.steps) == 9_000
    assert len(run.engine.steps.ends()) < 9_000


def test_without_requests_there_are_no_gaps() -> None:
    assert len(TokenCounts([ran().engine]).gaps()) == 0
