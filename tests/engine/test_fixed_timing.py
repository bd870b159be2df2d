"""Requests on clocks of their own: set times, load, noise, slots."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import Event, Finished, StepDone, StepsDone
from blis_sim.engine.latency.blackbox import InstantLatency
from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.engine.lora import LoraSettings
from blis_sim.engine.request import ExternalPrompt, HashedBlocks, Request, UniqueBlocks
from blis_sim.engine.scheduler.interface import PauseState
from blis_sim.engine.sequence import Outcome
from tests.examples import examples

TIMING = RequestTiming(first_token_us=1000, token_gap_us=100, num_slots=4)


def new_engine(timing: RequestTiming = TIMING, **config: object) -> Engine:
    base = EngineConfig(1000, max_num_seqs=timing.num_slots, timing=timing)
    return Engine(replace(base, **config), InstantLatency())  # type: ignore[arg-type]


def request(name: str, input_tokens: int = 8, output_tokens: int = 3, adapter: str = "") -> Request:
    return Request(name, input_tokens, output_tokens, UniqueBlocks(name), output_tokens, adapter=adapter)


def token_times(events: list[Event]) -> dict[str, list[int]]:
    """When each request got its tokens."""
    found: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, StepDone):
            for sequence in event.emitted:
                found.setdefault(sequence.request.id, []).append(event.at)
                assert sequence.tokens_at(event.index) == len(found[sequence.request.id])
    return found


def test_each_request_has_the_set_times_whatever_others_do() -> None:
    engine = new_engine()
    engine.submit(request("a"), 0)
    engine.submit(request("b"), 550)
    assert token_times(engine.advance(10**9)) == {"a": [1000, 1100, 1200], "b": [1550, 1650, 1750]}


def test_memory_of_a_request_does_not_grow_with_the_tokens_of_others() -> None:
    engine = new_engine()
    engine.submit(request("a", output_tokens=50), 0)
    engine.submit(request("b", output_tokens=50), 50)
    finished = [event.sequence for event in engine.advance(10**9) if isinstance(event, Finished)]
    assert [len(sequence.token_runs) for sequence in finished] == [1, 1]


@example([(0, 1), (35, 70), (35, 77), (35, 3)], [], 7, 21)  # two end at one instant
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 90)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 5)), max_size=2),
    st.sampled_from([1, 7, 100]),
    st.integers(1, 4000),
)
def test_tokens_reported_together_equal_those_reported_one_by_one(
    arrivals: list[tuple[int, int]], hang_ups: list[tuple[int, int]], gap_us: int, ahead_us: int
) -> None:
    def reported(allows_multi_step: bool) -> tuple[list[tuple[int, str, int]], list[tuple[int, str, Outcome, int]]]:
        engine = new_engine(replace(TIMING, token_gap_us=gap_us, num_slots=2))
        for number, (at, output_tokens) in enumerate(arrivals):
            engine.submit(request(f"{number}", output_tokens=output_tokens), at)
        for at, number in hang_ups:
            engine.abort(f"{number}", at)
        tokens, ends = [], []
        while (due_at := engine.next_event_at()) is not None:
            for event in engine.advance(due_at + ahead_us, allows_multi_step):
                if isinstance(event, StepDone):
                    tokens += [(event.at, each.request.id, each.tokens_at(event.index)) for each in event.emitted]
                elif isinstance(event, StepsDone):
                    (sequence,) = event.emitted
                    tokens += [
                        (at, sequence.request.id, sequence.tokens_at(index))
                        for index, at in enumerate(event.ends, event.first)
                    ]
                elif isinstance(event, Finished):
                    each = event.sequence
                    ends.append((event.at, each.request.id, event.outcome, each.num_output_tokens))
        return sorted(tokens), ends

    assert reported(allows_multi_step=True) == reported(allows_multi_step=False)


def test_a_request_without_a_slot_waits_for_one() -> None:
    engine = new_engine(replace(TIMING, num_slots=1))
    engine.submit(request("a"), 0)
    engine.submit(request("b"), 1)
    assert token_times(engine.advance(10**9))["b"] == [2200, 2300, 2400]


def test_times_grow_with_the_number_of_running_requests() -> None:
    engine = new_engine(replace(TIMING, load_factor=4.0))
    for index in range(4):
        engine.submit(request(f"r{index}", output_tokens=2), 0)
    times = token_times(engine.advance(10**9))
    # A request is slowed down by those that run when it starts, itself included.
    assert [times[f"r{index}"][0] for index in range(4)] == [1000, 2000, 3000, 4000]
    assert times["r0"][1] == 1000 + 400
    assert times["r3"][1] == 4000 + 100


def test_the_first_token_may_depend_on_what_is_not_cached() -> None:
    timing = RequestTiming(per_token=True, prefill_overhead_us=500, prefill_per_token_us=10, num_slots=2)
    engine = new_engine(timing)
    for name, at in (("a", 0), ("b", 5000)):
        engine.submit(Request(name, 64, 1, HashedBlocks(name, (1, 2, 3, 4)), 1), at)
    assert token_times(engine.advance(10**9)) == {"a": [1140], "b": [5000 + 500 + 16 * 10]}


@pytest.mark.parametrize(
    ("set_times", "first_token_us"),
    [
        ({"transfer_us": 300}, 300),
        ({"transfer_per_token_us": 5}, 64 * 5),
        ({"transfer_us": 300, "transfer_per_token_us": 5}, 300),
        ({}, 0),
    ],
)
def test_a_prompt_computed_elsewhere_takes_its_transfer_instead_of_a_prefill(
    set_times: dict[str, float], first_token_us: int
) -> None:
    engine = new_engine(replace(TIMING, **set_times))  # type: ignore[arg-type]
    engine.submit(request("a", 64)._replace(external=ExternalPrompt(num_tokens=64, transfer_us=0)), 1000)
    assert token_times(engine.advance(10**9))["a"][0] == 1000 + max(1, first_token_us)


def test_noise_is_as_set_and_never_far_from_the_mean() -> None:
    timing = RequestTiming(token_gap_us=1000, token_gap_std_us=100, num_slots=1)
    gaps = [timing.token_gap(3, number, 1) for number in range(2, 4000)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1000, rel=0.01)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(100, rel=0.05)
    wild = RequestTiming(token_gap_us=1000, token_gap_std_us=5000, num_slots=1)
    assert {300, 1700} <= {wild.token_gap(0, number, 1) for number in range(2, 200)}
    assert all(300 <= wild.token_gap(0, number, 1) <= 1700 for number in range(2, 200))
    assert replace(timing, seed=1).token_gap(3, 2, 1) != timing.token_gap(3, 2, 1)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 100), st.integers(1, 6)), max_size=12), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_every_request_ends_whatever_is_hung_up_or_held(
    arrivals: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    engine = new_engine(replace(TIMING, num_slots=2), total_kv_blocks=12, max_model_len=160)
    for index, (at, input_tokens, output_tokens) in enumerate(sorted(arrivals)):
        engine.submit(request(f"r{index}", input_tokens, output_tokens), at)
        if data.draw(st.booleans()):
            engine.abort(f"r{index}", at + data.draw(st.integers(1, 2000)))
    events = engine.advance(1500)
    engine.hold(PauseState.EVERYTHING, 1501)
    held = engine.advance(4000)
    assert not any(isinstance(event, StepDone) for event in held)
    engine.hold(PauseState.NONE, 4001)
    if data.draw(st.booleans()):
        engine.reset_prefix_cache(4001, preempts_running=True)
    events += held + engine.advance(10**9)
    assert len([event for event in events if isinstance(event, Finished)]) == len(arrivals)
    engine.check_integrity()
    assert engine.stats.kv_blocks_used == 0


def test_a_request_without_blocks_starts_when_the_cache_grows_back() -> None:
    engine = new_engine()
    engine.shrink_cache(999, 1)
    engine.submit(request("a"), 2)
    assert engine.advance(5000) == []
    engine.shrink_cache(0, 5001)
    assert token_times(engine.advance(10**9)) == {"a": [6001, 6101, 6201]}


def test_adapters_need_slots_of_their_own() -> None:
    engine = new_engine(lora=LoraSettings(max_loras=1))
    for name, adapter in (("a", "x"), ("b", "y"), ("c", "x")):
        engine.submit(request(name, adapter=adapter), 0)
    times = token_times(engine.advance(10**9))
    assert (times["a"][0], times["c"][0], times["b"][0]) == (1000, 1000, 2200)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ({"token_gap_us": -1}, "token_gap_us must be at least 0, got -1"),
        ({"load_factor": 0.5}, "load_factor must be at least 1, got 0.5"),
        ({"num_slots": 0}, "num_slots must be at least 1, got 0"),
    ],
)
def test_times_out_of_bounds_are_refused(field: dict[str, float], complaint: str) -> None:
    with pytest.raises(EngineError, match=f"^{complaint}$"):
        RequestTiming(**field)  # type: ignore[arg-type]


def test_times_that_change_hold_for_the_tokens_to_come() -> None:
    engine = new_engine()
    engine.submit(request("a", output_tokens=4), 0)
    before = engine.advance(1050)
    engine.set_timing(replace(TIMING, token_gap_us=500))
    assert token_times([*before, *engine.advance(10**9)]) == {"a": [1000, 1100, 1600, 2100]}
    computing = Engine(EngineConfig(1000), InstantLatency())
    assert computing.timing is None
    with pytest.raises(EngineError, match="times can only be set"):
        computing.set_timing(TIMING)
