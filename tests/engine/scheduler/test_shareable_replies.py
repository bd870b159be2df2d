"""Sequences whose replies other requests may find decode in the cohort, and their blocks are found when full."""

from functools import partial
from itertools import chain

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, StepsDone
from blis_sim.engine.request import Request
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from replay.arrivals import ConversationBlocks
from tests.fakes import TestLatency, config

STEP_US = 1000
SIZE = 4
LONG = 100
"""Output tokens of the first request."""


def talk(request_id: str, input_tokens: int, output_tokens: int, num_blocks: int, owner: str = "talk") -> Request:
    """A request with blocks that are those of all others of `owner`."""
    blocks = ConversationBlocks(request_id, num_blocks, owners=(owner,), ends=(num_blocks,))
    return Request(request_id, input_tokens, output_tokens, blocks, output_tokens)


def engine(
    has_cohort: bool, is_async: bool = True, long_prefill_token_threshold: int = 0, total_kv_blocks: int = 1000
) -> Engine:
    settings = config(
        total_kv_blocks,
        block_size_tokens=SIZE,
        engine="vllm",
        async_scheduling=is_async,
        long_prefill_token_threshold=long_prefill_token_threshold,
    )
    built = Engine(settings, TestLatency(step_us=STEP_US))
    built._scheduler = partial(VllmScheduler, reports_steps=True, has_cohort=has_cohort)(built._context)
    return built


def finish(running: Engine) -> list[Event]:
    """Advance an engine to its end, far enough each time that steps are reported together."""
    events: list[list[Event]] = []
    while (due_at := running.next_event_at()) is not None:
        events.append(running.advance(due_at + 50 * STEP_US, allows_multi_step=True))
    return list(chain.from_iterable(events))


def found_tokens(has_cohort: bool, is_async: bool, at: Micros, output_tokens: int = LONG) -> int:
    """Tokens that a second request finds at `at` of a first one that decodes since 0 and has been taken in leaps."""
    running = engine(has_cohort, is_async)
    running.submit(talk("first", 6, output_tokens, (6 + LONG) // SIZE), 0)
    second = Sequence(talk("second", 6 + LONG, 2, (6 + LONG) // SIZE), at)
    running.advance(at - 1, allows_multi_step=True)
    running.enter(second, at)
    finish(running)
    return second.num_cached_tokens


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("step", range(20, 40))
def test_a_request_finds_the_blocks_that_another_has_filled_by_its_admission(step: int, is_async: bool) -> None:
    at = step * STEP_US + 1
    found = found_tokens(True, is_async, at)
    assert found == found_tokens(False, is_async, at)
    assert abs(found - (6 + step)) <= SIZE


@pytest.mark.parametrize("output_tokens", [97, 98, 99, 100])
@pytest.mark.parametrize("step", range(92, 102))
def test_a_block_that_only_the_last_token_fills_is_found_when_that_step_has_ended(
    step: int, output_tokens: int
) -> None:
    at = step * STEP_US + 1
    assert found_tokens(True, True, at, output_tokens) == found_tokens(False, True, at, output_tokens)


def test_sequences_with_replies_that_others_may_find_are_taken_many_steps_at_a_time() -> None:
    running = engine(has_cohort=True)
    for number in range(8):
        running.submit(talk(f"r{number}", 5 + number, LONG, LONG // SIZE, owner=f"talk {number}"), number * 10)
    together = [len(event.ends) for event in finish(running) if isinstance(event, StepsDone)]
    assert sum(together) > LONG * 3 // 4


def holders_of(running: Engine, sequences: list[Sequence]) -> list[list[str]]:
    """For each findable block of a conversation, the requests that hold it in the order in which they filled it."""
    scheduler = running._scheduler
    assert isinstance(scheduler, VllmScheduler)
    holders = {block: each.request.id for each in sequences for block in (each.named_blocks or each.block_ids)}
    blocks_of = scheduler.kv.index._blocks_of
    identities = map(sequences[0].request.blocks.identity, range(100))
    return [[holders[block] for block in blocks_of[identity]] for identity in identities if identity in blocks_of]


def three_of_one_conversation(has_cohort: bool) -> list[list[str]]:
    running = engine(has_cohort)
    sequences = [running.submit(talk(f"r{number}", 9 - number, LONG, LONG // SIZE), number) for number in range(3)]
    running.advance(60 * STEP_US, allows_multi_step=True)
    assert bool(running._scheduler.cohort.members) is has_cohort  # type: ignore[attr-defined]
    return holders_of(running, sequences)


def test_equal_blocks_are_found_in_the_order_in_which_single_steps_fill_them() -> None:
    in_leaps, one_by_one = three_of_one_conversation(True), three_of_one_conversation(False)
    assert in_leaps == one_by_one
    assert [len(holders) for holders in one_by_one[2:12]] == [3] * 10


def two_with_the_same_words(has_cohort: bool, first: Request, second: Request) -> list[list[str]]:
    """Prompts are computed token by token, and every token is known at once, so that both fill blocks in step."""
    running = engine(has_cohort, is_async=False, long_prefill_token_threshold=1)
    sequences = [running.submit(first, 0), running.submit(second, 0)]
    running.advance(60 * STEP_US, allows_multi_step=True)
    return holders_of(running, sequences)


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(LONG, 1), (3, LONG)])
def test_of_equal_blocks_filled_with_the_same_step_that_of_the_first_admitted_is_found(
    input_tokens: int, output_tokens: int
) -> None:
    """The first request still computes its prompt, or it joins the cohort two steps after the second."""
    first = talk("first", input_tokens, output_tokens, LONG // SIZE)
    second = talk("second", 1, LONG, LONG // SIZE)
    one_by_one = two_with_the_same_words(False, first, second)
    assert two_with_the_same_words(True, first, second) == one_by_one
    assert one_by_one == [["first", "second"]] * len(one_by_one)
    assert len(one_by_one) > 10


def scheduled_at(has_cohort: bool, total_kv_blocks: int) -> Micros | None:
    """When a request is scheduled that finds a growing reply, and that lacks blocks at first."""
    running = engine(has_cohort, is_async=False, total_kv_blocks=total_kv_blocks)
    running.submit(talk("first", 6, LONG, (6 + LONG) // SIZE), 0)
    second = running.submit(talk("second", 6 + LONG, 2, (6 + LONG) // SIZE), 20 * STEP_US + 1)
    finish(running)
    return second.scheduled_at


@pytest.mark.parametrize("total_kv_blocks", range(30, 46))
def test_a_request_that_lacks_blocks_is_admitted_as_soon_as_it_finds_enough_of_them(total_kv_blocks: int) -> None:
    assert scheduled_at(True, total_kv_blocks) == scheduled_at(False, total_kv_blocks)


def found_after_a_pause(has_cohort: bool, at: Micros) -> int:
    """Tokens that a request finds which arrives in a pause from `at` on, and joins the first step after it."""
    running = engine(has_cohort)
    running.submit(talk("first", 6, LONG, (6 + LONG) // SIZE), 0)
    running.advance(at, allows_multi_step=True)
    running.hold(PauseState.EVERYTHING, at + 1)
    second = running.submit(talk("second", 6 + LONG, 2, (6 + LONG) // SIZE), at + 1)
    running.advance(at + 10 * STEP_US, allows_multi_step=True)
    running.hold(PauseState.NONE, at + 20 * STEP_US)
    finish(running)
    return second.num_cached_tokens


@pytest.mark.parametrize("step", range(20, 20 + 2 * SIZE))
def test_a_request_that_joins_after_a_pause_finds_the_blocks_filled_before(step: int) -> None:
    at = step * STEP_US + 1
    found = found_after_a_pause(True, at)
    assert found == found_after_a_pause(False, at)
    assert abs(found - (6 + step)) <= SIZE
