"""An engine that reports batches reports every step for itself, and nothing else changes."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone, StepDone, StepsDone
from blis_sim.engine.latency.blackbox import InstantLatency
from blis_sim.engine.request import Request, UniqueBlocks


def test_steps_are_not_joined_while_batches_are_reported() -> None:
    engines = [Engine(EngineConfig(total_kv_blocks=1000), InstantLatency()) for _ in range(2)]
    engines[1].report_batches()
    events = []
    for engine in engines:
        engine.submit(Request(id="a", input_tokens=40, output_tokens=60, blocks=UniqueBlocks("a")), 0)
        events.append(engine.advance(10**9, allows_multi_step=True))
    assert any(isinstance(event, StepsDone) for event in events[0])
    batches = [event for event in events[1] if isinstance(event, BatchDone)]
    steps = [event for event in events[1] if isinstance(event, StepDone)]
    assert [(batch.at, batch.index) for batch in batches] == [(step.at, step.index) for step in steps]
    assert len(steps) >= 60
    assert events[0][-1].at == events[1][-1].at
