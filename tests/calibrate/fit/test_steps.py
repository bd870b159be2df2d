"""Steps of a server, found in the token times of its clients."""

from dataclasses import replace

import numpy as np
import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.wrapped import PhaseShifted
from calibrate.fit.estimate import recorded
from calibrate.fit.recording import Recording, Steps, steps_of
from replay.simulation.simulate import simulate
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, KNOWN, VALUES, recording
from tests.calibrate.fit.known_server_tokens import Chunks, answered, token_times

LATENCY = PhaseShifted(DEPLOYED.latency(VALUES), 99)


@pytest.fixture(scope="module")
def known() -> Recording:
    return recording(200, rate=5.0)


@pytest.fixture(scope="module")
def chunks(known: Recording) -> Chunks:
    return token_times(known.arrivals)


def found(known: Recording, chunks: Chunks) -> Steps:
    steps = steps_of(answered(known.arrivals), chunks, CONFIG)
    assert steps is not None
    return steps


def test_steps_are_those_of_the_server(known: Recording, chunks: Chunks) -> None:
    steps = found(known, chunks)
    engine = Engine(CONFIG, LATENCY, reports_steps=False)
    simulate(engine, known.arrivals)
    shapes, run = recorded(known, CONFIG, LATENCY)
    before_us = KNOWN["output_us"] + KNOWN["output_request_us"] * run.outputs_by_step() + KNOWN["output_turn_us"]
    ends = engine.steps.ends() + before_us
    with_tokens = np.flatnonzero(run.outputs_by_step())
    decodes, context = (BatchShape._fields.index(name) for name in ("decode_requests", "decode_context_tokens"))
    assert steps.ends_us.tolist() == ends[with_tokens].tolist()
    assert steps.decodes.tolist() == shapes[with_tokens, decodes].tolist()
    assert steps.context_tokens.tolist() == shapes[with_tokens, context].tolist()


def test_a_plain_step_began_when_the_one_before_ended_and_held_the_prompts_whose_first_tokens_it_brought() -> None:
    known = recording(150, rate=20.0)
    steps = found(known, token_times(known.arrivals))
    shapes, run = recorded(known, CONFIG, LATENCY)
    with_tokens = np.flatnonzero(run.outputs_by_step())
    ends, starts = run.steps.ends()[with_tokens], (run.steps.ends() - run.steps.durations())[with_tokens]
    prompts = np.bincount(steps.prompt_steps, weights=steps.prompt_tokens, minlength=len(steps.ends_us))
    in_pieces = shapes[with_tokens, BatchShape._fields.index("prefill_tokens")] != prompts
    assert steps.plain.mean() > 0.5
    assert in_pieces.any()
    assert not (steps.plain & in_pieces).any()
    assert np.abs(starts[1:] - ends[:-1])[steps.plain[1:]].max() == 0


def test_while_the_tokens_of_one_client_stall_steps_are_not_plain(known: Recording, chunks: Chunks) -> None:
    plain = found(known, chunks)
    stalled = next(number for number, times in chunks.items() if len(times) > 100)
    late = [*chunks[stalled][:40], *[max(each, chunks[stalled][45] + 50) for each in chunks[stalled][40:]]]
    steps = found(known, {**chunks, stalled: late})
    from_us, to_us = chunks[stalled][40], chunks[stalled][45]
    within = (steps.ends_us > from_us - 100) & (steps.ends_us < to_us + 100)
    assert within.sum() == 6
    assert not steps.plain[within].any()
    assert steps.plain[~within].sum() == plain.plain[~within].sum()


def test_while_a_request_runs_whose_tokens_are_unknown_steps_are_not_plain(known: Recording, chunks: Chunks) -> None:
    hidden, times = next((number, times) for number, times in chunks.items() if len(times) > 100)
    requests = answered(known.arrivals, {hidden: (times[0] - 60_000, times[-1])})
    in_pairs = {**chunks, hidden: times[::2]}
    for reported in (in_pairs, {number: each for number, each in chunks.items() if number != hidden}):
        steps = steps_of(requests, reported, CONFIG)
        assert steps is not None
        within = (steps.ends_us >= times[0] - 60_000) & (steps.ends_us <= times[-1])
        assert not steps.plain[within].any()
        assert steps.plain.any()


def test_steps_with_pieces_of_a_long_prompt_are_not_plain(known: Recording, chunks: Chunks) -> None:
    config = replace(CONFIG, long_prefill_token_threshold=1_000)
    whole, in_pieces = (steps_of(answered(known.arrivals), chunks, each) for each in (CONFIG, config))
    assert whole is not None
    assert in_pieces is not None
    long = whole.prompt_steps[whole.prompt_tokens > 1_000]
    assert len(long) > 10
    lost = np.concatenate([long - back for back in range(5)])
    assert not in_pieces.plain[lost].any()
    kept = np.setdiff1d(np.arange(len(whole.plain)), np.concatenate([long - back for back in range(9)]))
    assert in_pieces.plain[kept].tolist() == whole.plain[kept].tolist()


def test_there_are_no_steps_without_token_times(known: Recording) -> None:
    assert steps_of(answered(known.arrivals), {}, CONFIG) is None
