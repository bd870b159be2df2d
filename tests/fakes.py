"""Tiny real implementations that tests use where the product has large ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.request import BlockIdentities, Request, UniqueBlocks
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class TestLatency(LatencyModel):
    """A step costs `step_us`, plus so much per prompt token and per decode, plus what depends on its whole shape."""

    __test__ = False

    step_us: Micros = 1000
    prefill_token_us: Micros = 0
    decode_us: Micros = 0
    figure_us: Micros = 0
    """For the first figure of the shape; twice, three times as much for the ones after it."""
    queueing_us: Micros = 0
    output_token_time: Micros = 0
    post_decode_time: Micros = 0
    output_sequence_time: Micros = 0

    def step_time(self, shape: BatchShape) -> Micros:
        linear = self.step_us + self.prefill_token_us * shape.prefill_tokens + self.decode_us * shape.decode_requests
        return linear + self.figure_us * sum(place * figure for place, figure in enumerate(shape, 1))

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        grown_us = self.figure_us * (1 + BatchShape._fields.index("decode_context_tokens")) * shape.decode_requests
        return np.arange(steps, dtype=np.int64) * grown_us + self.step_time(shape)

    def queueing_time(self, input_tokens: int) -> Micros:
        return self.queueing_us


def request(
    request_id: str = "a",
    input_tokens: int = 10,
    output_tokens: int = 3,
    blocks: BlockIdentities | None = None,
    deadline_us: Micros = 0,
    slo_class: str = "",
) -> Request:
    """A request whose declared budget is its true length, as recorded traces have it."""
    return Request(
        id=request_id,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_output_tokens=output_tokens,
        blocks=blocks or UniqueBlocks(request_id),
        deadline_us=deadline_us,
        slo_class=slo_class,
    )


def config(total_kv_blocks: int = 1000, block_size_tokens: int = 4, **settings: Any) -> EngineConfig:
    """Small blocks, so that tests can count them; BLIS's rules by default."""
    return EngineConfig(
        total_kv_blocks=total_kv_blocks,
        block_size_tokens=block_size_tokens,
        **({"engine": "blis"} | settings),
    )


def run(engine: Engine, arrivals: Iterable[tuple[Micros, Request]], horizon_us: Micros | None = None) -> list[Event]:
    """All events of a run in virtual time."""
    return list(run_virtual(engine, arrivals, horizon_us))
