"""Speculative decoding under vLLM's scheduling: tokens that a step computes, produces and takes back."""

from dataclasses import replace
from typing import Any

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, StepDone
from blis_sim.engine.request import HashedBlocks, Request, UniqueBlocks
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.speculation import Speculation
from tests.fakes import TestLatency, config, request, run


def drafting(method: str = "ngram", rates: tuple[float, ...] = (1.0, 1.0, 1.0), **settings: Any) -> Speculation:
    """Three drafts, all accepted by default."""
    return Speculation(method=method, num_tokens=len(rates), acceptance_rates=rates, **settings)


def engine(speculation: Speculation, **settings: Any) -> Engine:
    """Each step takes 1000 us; one step at a time, for these are easier to read."""
    given: dict[str, Any] = {"engine": "vllm", "async_scheduling": False, **settings}
    return Engine(replace(config(**given), speculation=speculation), TestLatency(step_us=1000))


def tokens_by_step(events: list[Event], name: str = "a") -> list[int]:
    """Return the number of tokens of one request in each step that produced any."""
    return [
        sequence.tokens_at(event.index) - sequence.tokens_at(event.index - 1)
        for event in events
        if isinstance(event, StepDone)
        for sequence in event.emitted
        if sequence.request.id == name
    ]


def ends(events: list[Event]) -> dict[str, tuple[int, Outcome, int]]:
    return {
        e.sequence.request.id: (e.at, e.outcome, e.sequence.num_output_tokens)
        for e in events
        if isinstance(e, Finished)
    }


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_step_brings_the_drafts_that_hold_and_one_token_more(async_scheduling: bool) -> None:
    sut = engine(drafting(rates=(1.0, 1.0, 0.0)), async_scheduling=async_scheduling)
    events = run(sut, [(0, request(output_tokens=10))])
    assert tokens_by_step(events) == [1, 3, 3, 3]
    assert ends(events) == {"a": (4_000, Outcome.COMPLETED, 10)}


def test_the_first_token_comes_alone_for_nothing_was_drafted() -> None:
    assert tokens_by_step(run(engine(drafting()), [(0, request(output_tokens=5))])) == [1, 4]


def test_tokens_after_the_last_one_are_dropped() -> None:
    events = run(engine(drafting()), [(0, request(output_tokens=3))])
    assert tokens_by_step(events) == [1, 2]
    assert ends(events)["a"][2] == 3


def test_drafts_stop_before_the_end_of_the_context() -> None:
    unbounded = Request("a", 10, 50, UniqueBlocks("a"))
    sut = engine(drafting(), max_model_len=16)
    events = run(sut, [(0, unbounded)])
    assert tokens_by_step(events) == [1, 4, 1], "of the 16 places the last is for a token that is never computed"
    assert ends(events)["a"][1:] == (Outcome.LENGTH_CAPPED, 6)


def test_rejected_drafts_are_computed_all_the_same() -> None:
    sut = engine(drafting(rates=(0.0, 1.0, 1.0)))
    events = run(sut, [(0, request(output_tokens=4))])
    assert tokens_by_step(events) == [1, 1, 1, 1]
    assert sut.last_shape.num_tokens == 4


def test_counters_hold_drafted_and_accepted_tokens_by_place() -> None:
    sut = engine(drafting(rates=(1.0, 1.0, 0.0)))
    run(sut, [(0, request(output_tokens=6))])
    counters = sut.counters
    assert (counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens) == (2, 6, 4)
    assert counters.num_accepted_per_position == [2, 2, 0]


def test_draws_do_not_depend_on_names() -> None:
    rates = (0.6, 0.6, 0.6)
    first = run(engine(drafting(rates=rates)), [(0, request("a", output_tokens=40))])
    other = run(engine(drafting(rates=rates)), [(0, request("z", output_tokens=40))])
    assert tokens_by_step(first) == tokens_by_step(other, "z")
    assert len(set(tokens_by_step(first))) > 2


def test_the_seed_changes_which_drafts_are_accepted() -> None:
    rates = (0.6, 0.6, 0.6)
    first = run(engine(drafting(rates=rates)), [(0, request(output_tokens=40))])
    other = run(engine(drafting(rates=rates, seed=1)), [(0, request(output_tokens=40))])
    assert tokens_by_step(first) != tokens_by_step(other)


def test_drafting_takes_time_in_steps_that_sample_and_only_there() -> None:
    sut = engine(drafting(draft_time_us=70), max_num_batched_tokens=8)
    run(sut, [(0, request(input_tokens=12, output_tokens=5))])
    assert sut.steps.durations().tolist() == [1000, 1070, 1070]


def test_the_cost_of_drafting_is_a_share_of_the_step_unless_it_is_given_as_time() -> None:
    for draft_time_us, added_us in (0, 250), (70, 70):
        sut = engine(drafting(draft_cost=0.25, draft_time_us=draft_time_us), max_num_batched_tokens=8)
        run(sut, [(0, request(input_tokens=12, output_tokens=5))])
        assert sut.steps.durations().tolist() == [1000, 1000 + added_us, 1000 + added_us]


def test_drafts_share_the_token_budget() -> None:
    sut = engine(drafting(), max_num_batched_tokens=6)
    events = run(sut, [(0, request("a", 2, 9)), (0, request("b", 2, 9))])
    assert tokens_by_step(events, "a") == [1, 4, 4]
    assert tokens_by_step(events, "b") == [1, 2, 2, 4], "what is left of the budget, until it is alone"


def test_a_drafter_with_rows_of_its_own_leaves_less_of_the_budget() -> None:
    events = run(engine(drafting("draft_model"), max_num_batched_tokens=8), [(0, request(input_tokens=16))])
    first = next(e.at for e in events if isinstance(e, StepDone) and e.emitted)
    assert first == 3_000, "7 + 7 + 2 tokens of the prompt"


def test_a_drafter_with_kv_of_its_own_holds_blocks_ahead() -> None:
    plain, ahead = engine(drafting()), engine(drafting("eagle"))
    for sut in (plain, ahead):
        sut.submit(request(input_tokens=7, output_tokens=9), 0)
        sut.advance(500)
    assert (plain.stats.kv_blocks_used, ahead.stats.kv_blocks_used) == (2, 3), "7 tokens, and 3 more, by 4"


def test_a_preempted_sequence_loses_its_drafts_and_keeps_its_tokens() -> None:
    sut = engine(drafting(rates=(1.0, 0.0)), total_kv_blocks=8)
    events = run(sut, [(0, request("a", 8, 12)), (0, request("b", 8, 12))])
    assert any(isinstance(event, Preempted) for event in events)
    assert {name: end[1:] for name, end in ends(events).items()} == dict.fromkeys("ab", (Outcome.COMPLETED, 12))
    assert sum(tokens_by_step(events, "b")) == 12
    assert sut.stats.kv_blocks_used == 0


def test_a_newcomer_found_whole_in_the_cache_is_filled_up_but_has_no_drafts_to_accept() -> None:
    def asking(name: str) -> Request:
        return request(name, 9, 9)._replace(blocks=HashedBlocks(name, (1, 2)))

    sut = engine(drafting())
    sut.submit(asking("a"), 0)
    sut.submit(asking("b"), 1_500)
    sut.advance(2_500)
    assert sut.last_shape.num_tokens == 4 + 4, "one lacking token of b is filled up to the width of a"
    events = sut.advance(3_000)
    assert tokens_by_step(events, "b") == [1]
    assert sut.counters.num_draft_tokens == 9


def test_a_client_that_hangs_up_leaves_nothing_behind() -> None:
    sut = engine(drafting(), async_scheduling=True)
    sut.submit(request("a", output_tokens=90), 0)
    sut.submit(request("b", output_tokens=9), 0)
    sut.abort("a", 2_500)
    events = sut.advance(100_000)
    assert ends(events)["a"][1] is Outcome.ABORTED
    assert ends(events)["b"][1:] == (Outcome.COMPLETED, 9)
    sut.check_integrity()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_request_preempted_during_a_step_keeps_its_tokens_and_drafts_anew(async_scheduling: bool) -> None:
    sut = engine(drafting(rates=(1.0, 1.0, 0.0)), async_scheduling=async_scheduling)
    sut.submit(request(input_tokens=9, output_tokens=30), 0)
    events = sut.advance(2_500)
    sut.reset_prefix_cache(2_501, preempts_running=True)
    assert sut.stats.num_waiting == 1
    events += sut.advance(100_000)
    assert sum(tokens_by_step(events)) == 30
    assert ends(events)["a"][1:] == (Outcome.COMPLETED, 30)
    assert sut.stats.kv_blocks_used == 0
