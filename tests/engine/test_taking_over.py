"""Requests whose prompt another instance has computed. A step takes 1000 us, a block holds 4 tokens."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event, Finished, Preempted
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.sequence import Outcome, Sequence
from tests.fakes import TestLatency, config, request


def engine(total_kv_blocks: int = 100, reports_steps: bool = True) -> Engine:
    return Engine(config(total_kv_blocks), TestLatency(queueing_us=300), reports_steps)


def computed(name: str = "a", input_tokens: int = 10, output_tokens: int = 3) -> Sequence:
    return Sequence(request(name, input_tokens, output_tokens), arrived_at=0)


def drain(each: Engine) -> list[Event]:
    events: list[Event] = []
    while (due_at := each.next_event_at()) is not None:
        events += each.advance(due_at)
    return events


@pytest.mark.parametrize("reports_steps", [True, False])
def test_a_taken_over_request_decodes_at_once_one_step_less_than_it_has_tokens(reports_steps: bool) -> None:
    each, sequence = engine(reports_steps=reports_steps), computed(output_tokens=3)
    assert each.reserve(sequence)
    assert each.stats.kv_blocks_used == 3
    each.enqueue_reserved(sequence, 5_000)
    drain(each)
    assert (sequence.scheduled_at, sequence.first_token_at) == (5_000, 6_000)
    assert sequence.token_runs == [[0, 2]]
    assert (sequence.outcome, sequence.num_output_tokens) == (Outcome.COMPLETED, 3)
    assert each.stats.kv_blocks_used == 0
    assert each.counters.input_tokens == 0
    each.check_integrity()


@pytest.mark.parametrize("reports_steps", [True, False])
def test_a_single_token_takes_a_step_all_the_same(reports_steps: bool) -> None:
    each, sequence = engine(reports_steps=reports_steps), computed(output_tokens=1)
    assert each.reserve(sequence)
    each.enqueue_reserved(sequence, 5_000)
    finished = [event for event in drain(each) if isinstance(event, Finished)]
    assert [(event.at, event.sequence.num_output_tokens) for event in finished] == [(6_000, 1)]


def test_a_prompt_without_room_is_not_reserved() -> None:
    each = engine(total_kv_blocks=5)
    assert each.reserve(computed("a", 12))
    assert not each.reserve(computed("b", 12))
    assert each.stats.kv_blocks_used == 3


def test_an_abandoned_request_leaves_no_blocks() -> None:
    each, sequence = engine(), computed()
    assert each.reserve(sequence)
    each.release_reservation(sequence)
    assert each.stats.kv_blocks_used == 0
    each.check_integrity()


def test_reserved_prompts_are_found_by_others_as_their_blocks_are_full() -> None:
    each, blocks = engine(), PrefixGroupBlocks("a", "shared", 2)
    assert each.reserve(Sequence(request("a", 10, 3, blocks=blocks), arrived_at=0))
    again = request("b", 10, 1, blocks=blocks)
    each.submit(again, 1_000)
    drain(each)
    assert each.stats.prefix_hit_tokens == 8


@pytest.mark.parametrize("reports_steps", [True, False])
def test_waiting_prompts_lose_their_blocks_when_no_request_could_ever_run_otherwise(reports_steps: bool) -> None:
    each = engine(total_kv_blocks=4, reports_steps=reports_steps)
    first, second = computed("a", 8, 4), computed("b", 8, 4)
    for sequence in (first, second):
        assert each.reserve(sequence)
        each.enqueue_reserved(sequence, 1_000)
    preempted = [event.sequence for event in drain(each) if isinstance(event, Preempted)]
    assert set(preempted) == {second}
    assert [first.outcome, second.outcome] == [Outcome.COMPLETED] * 2
    assert second.first_token_step is not None
    each.check_integrity()


@pytest.mark.parametrize("reports_steps", [True, False])
def test_a_preempted_request_comes_back_with_one_token_of_its_prompt_and_finds_none_of_it(reports_steps: bool) -> None:
    each = engine(total_kv_blocks=6, reports_steps=reports_steps)
    blocks = PrefixGroupBlocks("b", "shared", 2)
    first, second = computed("a", 8, 6), Sequence(request("b", 8, 9, blocks=blocks), arrived_at=0)
    for sequence in (first, second):
        assert each.reserve(sequence)
        each.enqueue_reserved(sequence, 1_000)
    drain(each)
    # Both decode four tokens, then "b" loses its blocks; its one token takes a step, the other seven the next one.
    assert second.num_preemptions == 1
    assert (second.scheduled_at, second.first_token_at) == (6_000, 8_000)
    assert each.kv.hit_tokens == 0
    assert [first.outcome, second.outcome] == [Outcome.COMPLETED] * 2


def test_the_only_running_request_loses_its_blocks_where_others_can_go_on_then() -> None:
    each = engine(total_kv_blocks=4)
    first, second = computed("a", 8, 6), computed("b", 7, 6)
    assert each.reserve(first)
    assert each.reserve(second)
    each.enqueue_reserved(second, 1_000)
    each.enqueue_reserved(first, 1_000)
    preempted = [event.sequence for event in drain(each) if isinstance(event, Preempted)]
    # "b" has a slot left in its last block, "a" has none; once "b" gives its blocks back both run.
    assert preempted[0] is second
    assert each.counters.num_reservations_evicted == 0
    assert [first.outcome, second.outcome] == [Outcome.COMPLETED] * 2


def test_only_the_scheduling_of_blis_reserves() -> None:
    each = Engine(config(engine="vllm"), TestLatency())
    with pytest.raises(EngineError, match="not with vllm"):
        each.reserve(computed())
