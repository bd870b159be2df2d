"""`blis fit` learns from the recording of a tap what a server of unknown coefficients takes for a step."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone, Event, StepDone
from blis_sim.engine.latency.fitted import STEP_TERMS
from blis_sim.engine.simulation import run_virtual
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.messages import (
    EngineOutput,
    EngineOutputs,
    IterationDetails,
    PrefillStats,
    SchedulerStats,
)
from blis_sim.wings.tap.forwarding import Piece
from blis_sim.wings.tap.recording import LinkRecorder
from calibrate.fit.estimate import recorded
from calibrate.fit.learn import learn
from calibrate.fit.recording import recording_of_steps
from replay.arrivals import Arrival
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, VALUES, arrivals, recording
from tests.wings.engine_core.frontend import request
from traces.steps import read_steps

NUM_STEPS = 5000
NOISE = 0.01
"""Standard deviation of a step's duration, as a share of it."""
DELAY_S = 60e-6
"""The most by which a message comes later to the tap than its step has ended."""


def outputs_of(events: Iterator[Event], generator: np.random.Generator) -> Iterator[EngineOutputs]:
    """Yield what an engine core sends after each step, with durations of its own."""
    late_us = 0.0
    batch: BatchDone | None = None
    told: dict[str, int] = {}
    for event in events:
        if isinstance(event, BatchDone):
            batch = event
        elif isinstance(event, StepDone) and batch is not None:
            duration_us = batch.at - batch.started_at
            late_us += (noise_us := duration_us * NOISE * generator.standard_normal())
            outputs = []
            for sequence in event.emitted:
                name, prompt = sequence.request.id, sequence.request.input_tokens
                output = EngineOutput(name, [7] * (sequence.tokens_at(event.index) - told.get(name, 0)))
                if name not in told:
                    output.prefill_stats = PrefillStats(prompt, prompt)
                told[name] = sequence.tokens_at(event.index)
                if told[name] == sequence.request.output_tokens:
                    output.finish_reason = messages.Finish.LENGTH
                outputs.append(output)
            tokens = sum(number for _, number in batch.prompts)
            others = batch.shape.num_requests - len(batch.prompts)
            details = IterationDetails(
                batch.index,
                len(batch.prompts),
                tokens,
                others,
                batch.shape.num_tokens - tokens,
                (duration_us + noise_us) / 1e3,
            )
            usage = batch.num_blocks_after / (CONFIG.total_kv_blocks or 1)
            stats = SchedulerStats(kv_cache_usage=usage, iteration_details=details)
            yield EngineOutputs(0, outputs, stats, 1.0 + (event.at + late_us) / 1e6)


def tap(requests: list[Arrival], prefix: Path) -> None:
    """Record what passes between the known server and its frontend."""
    generator = np.random.default_rng(5)
    recorder = LinkRecorder(prefix)
    to_engine, to_frontend = Piece(1, 0, True, 0.0, b""), Piece(2, 0, False, 0.0, b"")
    for each in requests:
        added = messages.encode(request(each.request.id, [1] * each.request.input_tokens, each.request.output_tokens))
        recorder.read(to_engine, [messages.ADD, added])
    engine = Engine(CONFIG, DEPLOYED.latency(VALUES), reports_batches=True)
    events = run_virtual(engine, ((each.at, each.request) for each in requests))
    for outputs in outputs_of(iter(events), generator):
        at_s = outputs.timestamp + DELAY_S * generator.random()
        recorder.read(to_frontend._replace(at_s=at_s), [messages.encode(outputs)])
    recorder.take([])
    recorder.close()
    assert recorder.num_unreadable == 0


@pytest.mark.slow
def test_five_thousand_tapped_steps_teach_step_times_within_three_tenths_of_a_percent(tmp_path: Path) -> None:
    tap(arrivals(260, rate=3.0), tmp_path / "tap")
    path = tmp_path / "tap.steps.csv"
    steps = read_steps(path)[:NUM_STEPS]
    assert len(steps) == NUM_STEPS
    learned = learn([recording_of_steps(path, steps, CONFIG)], DEPLOYED, CONFIG)
    shapes, _ = recorded(recording(300, rate=3.0, seed=7), CONFIG, DEPLOYED.latency(VALUES))
    known, found = (
        DEPLOYED.basis(each, shapes) @ each[: len(STEP_TERMS)] for each in (VALUES, learned.estimate.values)
    )
    errors = np.abs(found / known - 1)
    assert np.quantile(errors, 0.99) < 0.003
    assert errors.mean() < 0.001
