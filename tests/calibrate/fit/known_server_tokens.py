"""Single tokens of the known server as its clients see them, for tests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.latency.wrapped import PhaseShifted
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.simulation import run_virtual
from calibrate.fit.recording import Recording, steps_of, stretches_of
from replay.arrivals import Arrival
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, KNOWN, VALUES
from tests.replay.small_traces import row

Chunks: TypeAlias = dict[int, list[int]]
"""Times of the tokens of each request, by its number."""


def token_times(requests: list[Arrival], phase: int = 99) -> Chunks:
    """Return the arrival time of each token of each request; tokens of a step are handed out in turn."""
    engine = Engine(CONFIG, PhaseShifted(DEPLOYED.latency(VALUES), phase), reports_steps=False)
    events = list(run_virtual(engine, ((each.at, each.request) for each in requests)))
    sequences = [each.sequence for each in events if isinstance(each, Finished)]
    ends, handed_out = engine.steps.ends(), np.zeros(len(engine.steps), np.int64)
    counts = np.zeros(len(engine.steps), np.int64)
    for sequence in sequences:
        counts[_token_steps(sequence)] += 1
    times: Chunks = {}
    for sequence in sorted(sequences, key=lambda each: each.arrived_at):
        steps = _token_steps(sequence)
        handed_out[steps] += 1
        turns_us = KNOWN["output_request_us"] * counts[steps] + KNOWN["output_turn_us"] * handed_out[steps]
        after_us = KNOWN["output_us"] + turns_us
        times[int(sequence.request.id[1:])] = (ends[steps] + after_us).astype(int).tolist()
    return times


def _token_steps(sequence: Sequence) -> list[int]:
    decodes = [step for first, count in sequence.token_runs for step in range(first, first + count)]
    first = sequence.first_token_step
    return decodes if first is None or first in decodes else [first, *decodes]


def answered(requests: list[Arrival], sent_and_ended: Mapping[int, tuple[int, int]] | None = None) -> list[Arrival]:
    """The requests as a recording has them; some with the times they were sent and ended."""
    times = sent_and_ended or {}
    reported = []
    for number, each in enumerate(requests):
        sent_us, ended_us = times.get(number, (0, 0))
        columns = {"send_time_us": sent_us, "last_chunk_time_us": ended_us}
        reported.append(each._replace(row=row(number, output_tokens=each.request.output_tokens, **columns)))
    return reported


def with_token_times(plain: Recording, chunks: Chunks) -> Recording:
    """Return `plain` and the steps by the token times `chunks`."""
    steps = steps_of(answered(plain.arrivals), chunks, CONFIG)
    return replace(plain, stretches=None if steps is None else stretches_of(steps))
