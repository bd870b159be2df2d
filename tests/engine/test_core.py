"""The life of a request in the engine, step by step."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.sequence import Outcome
from tests.fakes import TestLatency, config, request, run


def engine(latency: TestLatency | None = None, **settings: int | str) -> Engine:
    return Engine(config(**settings), latency or TestLatency())  # type: ignore[arg-type]


def test_a_lone_request_takes_one_step_for_its_prompt_and_one_for_each_further_token() -> None:
    events = run(engine(), [(5_000, request(output_tokens=3))])
    steps = [(event.started_at, event.at) for event in events if isinstance(event, StepDone)]
    assert steps == [(5_000, 6_000), (6_000, 7_000), (7_000, 8_000)]
    assert [event.at for event in events if isinstance(event, Finished)] == [8_000]


def test_a_request_waits_out_its_queueing_overhead_before_it_can_be_scheduled() -> None:
    events = run(engine(TestLatency(queueing_us=300)), [(5_000, request())])
    assert [event.at for event in events if isinstance(event, Scheduled)] == [5_300]


def test_an_arrival_at_the_instant_a_step_ends_joins_the_next_step() -> None:
    events = run(engine(), [(0, request("a")), (1_000, request("b"))])
    assert [(e.at, e.sequence.request.id) for e in events if isinstance(e, Scheduled)] == [(0, "a"), (1_000, "b")]


def test_an_arrival_just_after_a_step_began_waits_for_the_whole_step() -> None:
    events = run(engine(), [(0, request("a")), (1_001, request("b"))])
    assert [e.at for e in events if isinstance(e, Scheduled)] == [0, 2_000]


def test_requests_arriving_together_share_their_first_step() -> None:
    events = run(engine(), [(0, request("a")), (0, request("b"))])
    (first, *_) = [event for event in events if isinstance(event, StepDone)]
    assert [sequence.request.id for sequence in first.emitted] == ["a", "b"]


def test_a_step_reports_the_number_of_each_token_even_when_read_late() -> None:
    events = run(engine(), [(0, request("a", output_tokens=3)), (1_000, request("b", output_tokens=2))])
    numbers = [
        {sequence.request.id: sequence.tokens_at(event.index) for sequence in event.emitted}
        for event in events
        if isinstance(event, StepDone)
    ]
    assert numbers == [{"a": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 2}]


def test_a_request_without_output_ends_with_its_prompt_and_emits_nothing() -> None:
    events = run(engine(), [(0, request(output_tokens=0))])
    assert [len(event.emitted) for event in events if isinstance(event, StepDone)] == [0]
    assert [event.at for event in events if isinstance(event, Finished)] == [1_000]


def test_a_long_prompt_is_split_by_the_token_budget() -> None:
    sut = engine(TestLatency(step_us=0, prefill_token_us=1), max_num_batched_tokens=8)
    events = run(sut, [(0, request(input_tokens=20, output_tokens=1))])
    assert [event.at - event.started_at for event in events if isinstance(event, StepDone)] == [8, 8, 4]


def test_a_long_prompt_is_split_by_the_long_prefill_threshold() -> None:
    sut = engine(TestLatency(step_us=0, prefill_token_us=1), long_prefill_token_threshold=6)
    events = run(sut, [(0, request(input_tokens=20, output_tokens=1))])
    assert [event.at - event.started_at for event in events if isinstance(event, StepDone)] == [6, 6, 6, 2]


def test_running_requests_are_served_before_waiting_ones() -> None:
    sut = engine(max_num_batched_tokens=10)
    events = run(sut, [(0, request("a", input_tokens=10, output_tokens=9)), (0, request("b", input_tokens=15))])
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [[s.request.id for s in step.emitted] for step in steps[:4]] == [["a"], ["a"], ["a", "b"], ["a", "b"]]


def test_no_more_than_max_num_seqs_run_at_once() -> None:
    events = run(engine(max_num_seqs=2), [(0, request(name, output_tokens=4)) for name in "abc"])
    assert [e.at for e in events if isinstance(e, Scheduled)] == [0, 0, 4_000]


def test_the_last_admitted_request_is_preempted_when_blocks_run_out_and_starts_over() -> None:
    sut = engine(total_kv_blocks=6, block_size_tokens=4)
    events = run(sut, [(0, request("a", 8, 6)), (0, request("b", 8, 6))])
    (preempted,) = [event for event in events if isinstance(event, Preempted)]
    assert preempted.sequence.request.id == "b"
    finished = {e.sequence.request.id: e.at for e in events if isinstance(e, Finished)}
    scheduled = [(e.sequence.request.id, e.at) for e in events if isinstance(e, Scheduled)]
    assert finished["a"] == 6_000
    assert scheduled[-1] == ("b", 6_000)
    assert finished["b"] == 12_000, "all six tokens are generated again"


def test_a_preempted_request_finds_its_own_prompt_in_the_cache() -> None:
    sut = engine(total_kv_blocks=6, block_size_tokens=4)
    run(sut, [(0, request("a", 8, 6)), (0, request("b", 9, 6))])
    assert sut.counters.num_preemptions >= 1
    assert sut.kv.hit_tokens > 0


def test_a_prompt_that_can_never_fit_is_refused_with_a_reason() -> None:
    events = run(engine(total_kv_blocks=2), [(0, request(input_tokens=9)), (0, request("b", input_tokens=8))])
    (dropped,) = [e for e in events if isinstance(e, Finished) and e.outcome is Outcome.DROPPED]
    assert dropped.detail == "the prompt needs 3 KV blocks, the cache has 2"


def test_a_request_over_max_model_len_is_refused() -> None:
    events = run(engine(max_model_len=12), [(0, request(input_tokens=10, output_tokens=3))])
    assert [(e.outcome, e.detail) for e in events if isinstance(e, Finished)] == [
        (Outcome.DROPPED, "prompt and output budget are 10 + 3 tokens, max_model_len is 12")
    ]


def test_output_beyond_max_model_len_is_cut_off() -> None:

    unbounded = request(input_tokens=10, output_tokens=50)._replace(max_output_tokens=0)
    events = run(engine(max_model_len=16), [(0, unbounded)])
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert finished.outcome is Outcome.LENGTH_CAPPED
    assert finished.sequence.num_computed_tokens == 15


def test_a_deadline_ends_a_running_request_and_frees_its_blocks() -> None:
    sut = engine()
    events = run(sut, [(0, request(output_tokens=100, deadline_us=4_500))])
    assert [(e.at, e.outcome) for e in events if isinstance(e, Finished)] == [(4_500, Outcome.TIMED_OUT)]
    assert sut.stats.kv_blocks_used == 0


def test_a_completion_decided_before_the_deadline_beats_it() -> None:
    events = run(engine(), [(0, request(output_tokens=3, deadline_us=2_500))])
    assert [(e.at, e.outcome) for e in events if isinstance(e, Finished)] == [(3_000, Outcome.COMPLETED)]


def test_a_deadline_that_passes_before_the_queue_is_reached_ends_the_request_there() -> None:
    events = run(engine(TestLatency(queueing_us=100)), [(0, request(deadline_us=50))])
    assert [(e.at, e.outcome) for e in events if isinstance(e, Finished)] == [(100, Outcome.TIMED_OUT)]


def test_a_client_that_hangs_up_frees_its_slot_and_blocks_at_once() -> None:
    sut = engine(max_num_seqs=1)
    sut.submit(request("a", output_tokens=100), 0)
    sut.submit(request("b"), 0)
    sut.advance(2_500)
    sut.abort("a", 2_600)
    events = sut.advance(3_000)
    assert [(e.at, e.outcome) for e in events if isinstance(e, Finished)] == [(2_600, Outcome.ABORTED)]
    assert [(e.at, e.sequence.request.id) for e in events if isinstance(e, Scheduled)] == [(3_000, "b")]
    assert sut.stats.num_running == 1


def test_a_hang_up_before_the_queue_is_reached_is_an_end_too() -> None:
    sut = engine(TestLatency(queueing_us=500))
    sut.submit(request("a"), 0)
    sut.advance(100)
    sut.abort("a", 200)
    events = sut.advance(10_000)
    assert [(e.at, e.outcome) for e in events if isinstance(e, Finished)] == [(200, Outcome.ABORTED)]
    sut.check_integrity()


def test_hanging_up_on_a_request_that_has_ended_does_nothing() -> None:
    sut = engine()
    sut.submit(request("a", output_tokens=1), 0)
    sut.advance(5_000)
    sut.abort("a", 6_000)
    sut.abort("never seen", 6_000)
    assert sut.advance(7_000) == []


def test_an_executed_event_cannot_be_changed() -> None:
    sut = engine()
    sut.advance(100)
    with pytest.raises(ValueError, match="already done everything up to 100 us"):
        sut.submit(request(), 100)
    with pytest.raises(ValueError, match="already done everything up to 100 us"):
        sut.abort("a", 99)


def test_an_id_cannot_be_used_twice_at_the_same_time() -> None:
    sut = engine()
    sut.submit(request("a"), 10)
    with pytest.raises(ValueError, match="'a' is still in the engine"):
        sut.submit(request("a"), 20)


def test_an_engine_without_work_is_idle() -> None:
    sut = engine()
    assert sut.next_event_at() is None
    run(sut, [(0, request(deadline_us=10**9))])
    assert sut.next_event_at() is None, "a deadline of an ended request is not work"


def test_the_shortest_prompt_goes_first_with_that_scheduler() -> None:
    sut = engine(max_num_seqs=1, scheduler="sjf")
    arrivals = [(0, request("long", 40)), (10, request("longer", 50)), (20, request("short", 5))]
    order = [e.sequence.request.id for e in run(sut, arrivals) if isinstance(e, Scheduled)]
    assert order == ["long", "short", "longer"]


def test_the_most_urgent_class_goes_first_with_that_scheduler() -> None:
    sut = engine(max_num_seqs=1, scheduler="priority-fcfs")
    classes = ["batch", "background", "critical", "standard"]
    arrivals = [(0, request("first")), *((10, request(name, slo_class=name)) for name in classes)]
    order = [e.sequence.request.id for e in run(sut, arrivals) if isinstance(e, Scheduled)]
    assert order == ["first", "critical", "standard", "batch", "background"]


def test_the_least_urgent_request_is_preempted_with_that_policy() -> None:
    sut = engine(total_kv_blocks=6, preemption_policy="priority")
    events = run(sut, [(0, request("a", 8, 6, slo_class="batch")), (0, request("b", 8, 6, slo_class="critical"))])
    assert next(e.sequence.request.id for e in events if isinstance(e, Preempted)) == "a"
