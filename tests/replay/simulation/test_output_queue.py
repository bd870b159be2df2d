"""Tokens that wait for their turn in the API server process."""

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import OutputQueue, output_waits
from blis_sim.engine.events import StepDone
from blis_sim.engine.latency.wrapped import ApiServers, WrappedLatency
from replay.arrivals import Arrival
from replay.simulation.record import num_below_before, turns_in, turns_with_gaps
from replay.simulation.simulate import simulate
from tests.examples import examples
from tests.fakes import TestLatency, config, request, run
from tests.replay.small_traces import row


@dataclass(slots=True)
class InTurn(WrappedLatency):
    """`model` with an API server process."""

    turn_us: float = 0.0

    @property
    def output_turn_us(self) -> float:
        return self.turn_us


LATENCY = TestLatency(step_us=1_000, prefill_token_us=20, output_token_time=300, output_sequence_time=7)


def arrivals(seed: int, num_requests: int = 25) -> list[Arrival]:
    draws = np.random.default_rng(seed)
    instants = np.cumsum(draws.integers(0, 3_000, num_requests)).tolist()
    sizes = zip(draws.integers(1, 60, num_requests).tolist(), draws.integers(1, 20, num_requests).tolist(), strict=True)
    return [
        Arrival(at, request(f"r{number}", *size), row(number))
        for number, (at, size) in enumerate(zip(instants, sizes, strict=True))
    ]


def clients_view(due: list[Arrival], turn_us: float) -> dict[str, list[float]]:
    """When the tokens of each request come, by the events of an engine alone."""
    engine = Engine(config(engine="vllm"), InTurn(LATENCY, turn_us))
    queue = OutputQueue(engine.latency)
    instants: dict[str, list[float]] = {each.request.id: [] for each in due}
    for event in run(engine, [(each.at, each.request) for each in due]):
        if isinstance(event, StepDone):
            num_outputs = len(event.emitted)
            wait_us = queue.enter(event.at, num_outputs)
            for sequence in event.emitted:
                wait_us += turn_us
                instants[sequence.request.id].append(event.at + 300 + 7 * num_outputs + wait_us)
    return instants


@pytest.mark.parametrize("turn_us", [0.0, 40.0, 150.0])
def test_a_record_has_tokens_when_a_queue_of_them_hands_them_out(turn_us: float) -> None:
    due = arrivals(3)
    expected = clients_view(due, turn_us)
    engine = Engine(config(engine="vllm"), InTurn(LATENCY, turn_us), reports_steps=False)
    for measured, arrival in zip(simulate(engine, due).requests, due, strict=True):
        instants = expected[measured.id]
        assert measured.ttft_us == pytest.approx(instants[0] - arrival.at, abs=1)
        assert measured.e2e_us == pytest.approx(instants[-1] - arrival.at, abs=1)
        assert measured.itl_mean_us == pytest.approx((instants[-1] - instants[0]) / max(1, len(instants) - 1), abs=1)


def test_two_api_server_processes_halve_the_wait() -> None:
    assert ApiServers(InTurn(LATENCY, 40.0), 2).output_turn_us == 20.0


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1), st.floats(0, 20))
def test_waits_of_all_steps_are_those_of_a_queue(steps: list[tuple[int, int]], turn_us: float) -> None:
    ends = np.cumsum([gap for gap, _ in steps])
    counts = np.array([count for _, count in steps])
    queue = OutputQueue(InTurn(LATENCY, turn_us))
    each = [queue.enter(int(end), int(count)) for end, count in zip(ends, counts, strict=True)]
    assert output_waits(ends, counts, turn_us) == pytest.approx(each, abs=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))), st.booleans())
def test_turns_are_places_in_the_batch(spans: list[tuple[int, int]], is_in_order: bool) -> None:
    lives = [(first, first + length) for first, length in (sorted(spans) if is_in_order else spans)]
    firsts, lasts = (np.array([each[end] for each in lives], np.int64) for end in (0, 1))
    found = turns_in(firsts, lasts, np.arange(len(lives)))
    for place, life in enumerate(lives):
        for turns, step in zip(found, life, strict=True):
            assert turns[place] == 1 + sum(first <= step <= last for first, last in lives[:place])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sets(st.integers(0, 12), min_size=1), min_size=1), st.randoms())
def test_turns_count_only_requests_with_a_token_in_the_step(tokens: list[set[int]], random: Random) -> None:
    numbers = random.sample(range(3, 3 + 2 * len(tokens)), len(tokens))
    steps = [(place, step) for place, each in enumerate(tokens) for step in sorted(each)]
    found = turns_with_gaps(
        np.array([min(each) for each in tokens], np.int64),
        np.array([max(each) for each in tokens], np.int64),
        np.array(numbers, np.int64),
        np.array([step for _, step in steps], np.int64),
        np.ones(len(steps), np.int64),
        np.array([numbers[place] for place, _ in steps], np.int64),
    )
    for place, each in enumerate(tokens):
        for turns, step in zip(found, (min(each), max(each)), strict=True):
            earlier = [other for other, has in enumerate(tokens) if numbers[other] < numbers[place] and step in has]
            assert turns[place] == 1 + len(earlier)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-7, 7))))
def test_values_below_a_limit_before_it_are_counted(pairs: list[tuple[int, int]]) -> None:
    values, limits = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    expected = [sum(value < pair[1] for value, _ in pairs[:place]) for place, pair in enumerate(pairs)]
    assert num_below_before(values, limits).tolist() == expected
