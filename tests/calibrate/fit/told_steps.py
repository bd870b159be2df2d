"""Recorded steps of the engine of the known server."""

from collections.abc import Iterator, Sequence

from blis_sim.engine.core import Engine
from blis_sim.engine.events import BatchDone
from blis_sim.engine.simulation import run_virtual
from replay.arrivals import Arrival
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, VALUES
from traces.steps import Step

BEGUN_US = 1_780_000_000_000_000


def told_steps(requests: Sequence[Arrival]) -> list[Step]:
    """All that can be known of each step."""
    engine = Engine(CONFIG, DEPLOYED.latency(VALUES), reports_batches=True)
    events = run_virtual(engine, ((each.at, each.request) for each in requests))
    return list(_steps(event for event in events if isinstance(event, BatchDone)))


def _steps(batches: Iterator[BatchDone]) -> Iterator[Step]:
    for batch in batches:
        shape = batch.shape
        yield Step(
            step=batch.index,
            duration_us=batch.at - batch.started_at,
            prefill_requests=len(batch.prompts),
            prefill_tokens=shape.prefill_tokens,
            decode_requests=len(batch.decoding),
            decode_tokens=shape.num_tokens - shape.prefill_tokens,
            started_us=BEGUN_US + batch.started_at,
            prefill_context_tokens=shape.prefill_context_tokens,
            decode_context_tokens=shape.decode_context_tokens,
            prefill_tokens_squared=shape.prefill_tokens_squared,
            prefill_context_work=shape.prefill_context_work,
            prefill_prompt_work=shape.prefill_prompt_work,
            kv_usage=batch.num_blocks_after / (CONFIG.total_kv_blocks or 1),
        )


_LOGGED = Step._fields[: Step._fields.index("started_us")]
"""Columns that vLLM's log has."""


def as_logged(steps: Sequence[Step]) -> list[Step]:
    """Return these steps as vLLM's log has them."""
    return [
        Step(
            **{name: getattr(step, name) for name in _LOGGED},
            kv_usage=None if step.kv_usage is None else round(step.kv_usage, 3),
        )._replace(duration_us=round(step.duration_us, -1))
        for step in steps
    ]
