"""Suspending the scheduling and resetting the prefix cache, as an operator does while weights are exchanged."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished, Preempted, StepDone
from blis_sim.engine.request import HashedBlocks, Request
from blis_sim.engine.scheduler.interface import PauseState
from tests.fakes import TestLatency, config, request

SCHEDULINGS = ("vllm", "blis")
STEP_US = 1000


def new_engine(scheduling: str, **settings: int) -> Engine:
    return Engine(config(**settings, engine=scheduling), TestLatency(step_us=STEP_US))


def shared_prompt(request_id: str, output_tokens: int = 3) -> Request:
    blocks = HashedBlocks(request_id, (1, 2, 3))
    return request(request_id, input_tokens=13, output_tokens=output_tokens, blocks=blocks)


def drain(engine: Engine) -> list[Event]:
    """Everything still to happen."""
    events: list[Event] = []
    while (at := engine.next_event_at()) is not None:
        events += engine.advance(at)
    return events


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_while_everything_is_held_no_step_begins(scheduling: str) -> None:
    engine = new_engine(scheduling)
    engine.submit(request("a", output_tokens=50), 0)
    engine.advance(5 * STEP_US)
    engine.hold(PauseState.EVERYTHING, 5 * STEP_US + 1)
    drain(engine)
    num_steps = len(engine.steps)
    engine.submit(request("b"), 20 * STEP_US)
    assert not [event for event in engine.advance(100 * STEP_US) if isinstance(event, StepDone)]
    assert len(engine.steps) == num_steps
    assert engine.stats.num_running == 1
    assert engine.stats.num_waiting == 1


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_held_requests_go_on_where_they_were(scheduling: str) -> None:
    engine = new_engine(scheduling)
    engine.submit(request("a", output_tokens=50), 0)
    engine.advance(5 * STEP_US)
    engine.hold(PauseState.EVERYTHING, 5 * STEP_US + 1)
    engine.advance(100 * STEP_US)
    steps_before = len(engine.steps)
    engine.hold(PauseState.NONE, 100 * STEP_US + 1)
    finished = [event for event in drain(engine) if isinstance(event, Finished)]
    assert [event.at for event in finished] == [100 * STEP_US + 1 + (50 - steps_before) * STEP_US]
    engine.check_integrity()


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_resuming_during_a_step_waits_for_its_end(scheduling: str) -> None:
    engine = new_engine(scheduling)
    engine.submit(request("a", output_tokens=5), 0)
    engine.advance(100)
    engine.hold(PauseState.EVERYTHING, 200)
    engine.hold(PauseState.NONE, 300)
    ends = [event.at for event in drain(engine) if isinstance(event, StepDone)]
    assert ends == [STEP_US * number for number in range(1, len(ends) + 1)]


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_while_admissions_are_held_those_running_finish_and_those_waiting_stay(scheduling: str) -> None:
    engine = new_engine(scheduling)
    engine.submit(request("a", output_tokens=5), 0)
    engine.advance(100)
    engine.hold(PauseState.ADMISSIONS, 200)
    engine.submit(request("b"), 300)
    finished = [event.sequence.request.id for event in drain(engine) if isinstance(event, Finished)]
    assert finished == ["a"]
    assert engine.stats.num_waiting == 1
    engine.hold(PauseState.NONE, engine.clock + 10)
    assert [event.sequence.request.id for event in drain(engine) if isinstance(event, Finished)] == ["b"]
    engine.check_integrity()


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_a_reset_cache_finds_nothing(scheduling: str) -> None:
    engine = new_engine(scheduling)
    engine.submit(shared_prompt("a"), 0)
    drain(engine)
    assert engine.reset_prefix_cache(engine.clock + 1)
    engine.submit(shared_prompt("b"), engine.clock + 10)
    drain(engine)
    assert engine.stats.prefix_hit_tokens == 0
    engine.submit(shared_prompt("c"), engine.clock + 10)
    drain(engine)
    assert engine.stats.prefix_hit_tokens == 12
    engine.check_integrity()


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_a_cache_in_use_is_not_reset(scheduling: str) -> None:
    engine = new_engine(scheduling)
    engine.submit(shared_prompt("a", output_tokens=50), 0)
    engine.advance(3 * STEP_US)
    assert not engine.reset_prefix_cache(3 * STEP_US + 1)
    engine.submit(shared_prompt("b"), 4 * STEP_US)
    drain(engine)
    assert engine.stats.prefix_hit_tokens == 12


@pytest.mark.parametrize("scheduling", SCHEDULINGS)
def test_a_reset_may_preempt_whatever_runs_which_then_completes(scheduling: str) -> None:
    engine = new_engine(scheduling)
    for name in ("a", "b"):
        engine.submit(shared_prompt(name, output_tokens=20), 0)
    engine.advance(5 * STEP_US)
    assert engine.reset_prefix_cache(5 * STEP_US + 1, preempts_running=True)
    assert engine.stats.kv_blocks_used == 0
    events = drain(engine)
    assert [event.sequence.request.id for event in events if isinstance(event, Preempted)] == ["b", "a"]
    finished = [event.sequence for event in events if isinstance(event, Finished)]
    assert {sequence.request.id: sequence.num_output_tokens for sequence in finished} == {"a": 20, "b": 20}
    engine.check_integrity()


def test_an_engine_that_takes_many_steps_at_once_cannot_be_held() -> None:
    engine = Engine(config(engine="vllm"), TestLatency(), reports_steps=False)
    with pytest.raises(ValueError, match="cannot be interrupted"):
        engine.hold(PauseState.EVERYTHING, 1)
