"""Instants of events with vLLM's scheduling: a step is composed while the one before it executes."""

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.request import HashedBlocks
from blis_sim.engine.sequence import Outcome
from tests.fakes import TestLatency, config, request, run


def engine(**settings: int | str) -> Engine:
    """Each step takes 1000 us."""
    return Engine(config(engine="vllm", **settings), TestLatency(step_us=1000))  # type: ignore[arg-type]


def token_instants(events: list[Event], request_id: str) -> list[int]:
    return [
        event.at
        for event in events
        if isinstance(event, StepDone) and request_id in [sequence.request.id for sequence in event.emitted]
    ]


def ends(events: list[Event]) -> dict[str, tuple[int, Outcome]]:
    return {e.sequence.request.id: (e.at, e.outcome) for e in events if isinstance(e, Finished)}


def test_an_idle_engine_starts_at_once() -> None:
    events = run(engine(), [(5_000, request("a", output_tokens=2))])
    assert token_instants(events, "a") == [6_000, 7_000]


def test_an_arrival_during_a_step_waits_for_it_and_for_the_step_composed_meanwhile() -> None:
    events = run(engine(), [(0, request("a", output_tokens=9)), (500, request("b", output_tokens=1))])
    assert [(e.sequence.request.id, e.at) for e in events if isinstance(e, Scheduled)] == [("a", 0), ("b", 1_000)]
    assert token_instants(events, "b") == [3_000]


def test_without_asynchronous_scheduling_it_waits_for_the_step_under_way_only() -> None:
    sut = engine(async_scheduling=False)
    events = run(sut, [(0, request("a", output_tokens=9)), (500, request("b", output_tokens=1))])
    assert token_instants(events, "b") == [2_000]


def test_an_arrival_at_the_instant_a_step_ends_joins_the_composition_of_that_instant() -> None:
    events = run(engine(), [(0, request("a", output_tokens=9)), (1_000, request("b", output_tokens=1))])
    assert token_instants(events, "b") == [3_000]


def test_an_arrival_at_the_instant_all_others_left_is_composed_behind_their_step() -> None:
    sut = engine()
    sut.submit(request("a", output_tokens=9), 0)
    sut.abort("a", 500)
    sut.submit(request("b", output_tokens=1), 1_000)
    events = sut.advance(10_000)
    assert [(e.sequence.request.id, e.at) for e in events if isinstance(e, Scheduled)] == [("a", 0), ("b", 1_000)]
    assert token_instants(events, "b") == [3_000]


def test_the_end_by_the_declared_budget_wastes_no_step() -> None:
    sut = engine()
    run(sut, [(0, request("a", output_tokens=3))])
    assert len(sut.steps) == 3


def test_an_unforeseen_end_wastes_the_step_composed_meanwhile() -> None:
    sut = engine()
    surprise = request("a", output_tokens=3)._replace(max_output_tokens=10)
    events = run(sut, [(0, surprise)])
    assert ends(events) == {"a": (3_000, Outcome.COMPLETED)}
    assert sut.steps.end(len(sut.steps) - 1) == 4_000
    assert token_instants(events, "a") == [1_000, 2_000, 3_000]


def test_a_hang_up_takes_effect_when_the_step_under_way_ends() -> None:
    sut = engine()
    sut.submit(request("a", output_tokens=9), 0)
    sut.abort("a", 1_500)
    events = sut.advance(10_000)
    assert ends(events) == {"a": (2_000, Outcome.ABORTED)}
    assert token_instants(events, "a") == [1_000]


def test_a_request_that_has_not_been_composed_yet_leaves_at_the_end_of_the_step_too() -> None:
    sut = engine()
    sut.submit(request("a", output_tokens=9), 0)
    sut.submit(request("b"), 200)
    sut.abort("b", 400)
    events = sut.advance(20_000)
    assert ends(events)["b"] == (1_000, Outcome.ABORTED)
    assert [e.sequence.request.id for e in events if isinstance(e, Scheduled)] == ["a"]


def test_the_step_composed_for_a_request_that_left_is_executed_and_delays_others() -> None:
    sut = engine()
    sut.submit(request("a", output_tokens=9), 0)
    sut.abort("a", 500)
    sut.submit(request("b", output_tokens=1), 1_200)
    events = sut.advance(10_000)
    assert [(sut.steps.start(i), sut.steps.end(i)) for i in range(2)] == [(0, 1_000), (1_000, 2_000)]
    assert token_instants(events, "b") == [3_000]


def test_a_deadline_takes_effect_when_the_step_under_way_ends() -> None:
    sut = engine()
    events = run(sut, [(0, request("a", output_tokens=9, deadline_us=2_500))])
    assert ends(events) == {"a": (3_000, Outcome.TIMED_OUT)}
    assert token_instants(events, "a") == [1_000, 2_000]
    assert sut.stats.kv_blocks_used == 0


def test_a_preempted_request_keeps_its_tokens_and_goes_on_from_there() -> None:
    sut = engine(total_kv_blocks=7)
    events = run(sut, [(0, request("a", 8, 8)), (0, request("b", 8, 8))])
    preempted = [event for event in events if isinstance(event, Preempted)]
    assert [event.sequence.request.id for event in preempted] == ["b"]
    numbers = [
        sequence.tokens_at(event.index)
        for event in events
        if isinstance(event, StepDone)
        for sequence in event.emitted
        if sequence.request.id == "b"
    ]
    assert numbers == list(range(1, 9)), "each token once, in order"
    assert token_instants(events, "b")[-1] > token_instants(events, "a")[-1]


def test_the_token_under_way_when_a_request_is_preempted_is_still_delivered() -> None:
    sut = engine(total_kv_blocks=7)
    events = run(sut, [(0, request("a", 8, 8)), (0, request("b", 8, 8))])
    (preempted,) = [event for event in events if isinstance(event, Preempted)]
    after = [at for at in token_instants(events, "b") if at > preempted.at]
    assert after[0] == preempted.at + 1_000, "the step that began when it was preempted brings a token"
    (back,) = [e.at for e in events if isinstance(e, Scheduled) and e.sequence is preempted.sequence and e.at > 0]
    assert back >= after[0]


def test_a_request_can_end_while_it_waits_after_its_preemption() -> None:
    sut = engine(total_kv_blocks=7)
    surprise = request("b", 8, 5)._replace(max_output_tokens=8)
    events = run(sut, [(0, request("a", 8, 8)), (0, surprise)])
    assert [(e.sequence.request.id, e.at) for e in events if isinstance(e, Preempted)] == [("b", 4_000)]
    assert ends(events)["b"] == (5_000, Outcome.COMPLETED)
    assert sut.stats.num_waiting == 0


def test_a_composition_that_only_evicts_is_followed_by_another_at_once() -> None:
    sut = engine(
        total_kv_blocks=4,
        async_scheduling=False,
        long_prefill_token_threshold=7,
        prefill_schedule_interval=3,
        reserve_full_prompt=False,
    )
    # When "b" needs a second block, "a" holds the rest and its prefill is not due: "b" goes, and "a" need not wait.
    events = run(sut, [(0, request("a", 11, 1)), (0, request("b", 3, 4))])
    assert [(e.sequence.request.id, e.at) for e in events if isinstance(e, Preempted)] == [("b", 2_000)]
    assert token_instants(events, "a") == [3_000]
    assert {name: outcome for name, (_, outcome) in ends(events).items()} == dict.fromkeys("ab", Outcome.COMPLETED)


def test_prefills_wait_for_their_turn_while_others_decode() -> None:
    sut = engine(prefill_schedule_interval=3, async_scheduling=False)
    events = run(sut, [(0, request("a", output_tokens=9)), (500, request("b", output_tokens=1))])
    assert token_instants(events, "b") == [4_000], "steps 1 and 4 may carry prefill"


def test_a_prompt_of_one_token_is_no_prefill_to_wait_for() -> None:
    sut = engine(prefill_schedule_interval=3, async_scheduling=False)
    events = run(sut, [(0, request("a", 1, output_tokens=9)), (500, request("b", output_tokens=1))])
    assert token_instants(events, "b") == [2_000]


def test_the_blocks_filled_by_the_last_step_can_be_found_again() -> None:
    sut = engine()
    run(sut, [(0, request("a", input_tokens=3, output_tokens=2, blocks=HashedBlocks("a", (7,))))])
    assert 7 in sut.kv.index.identities(), "three prompt tokens and the first output token fill it"
