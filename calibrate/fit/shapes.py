"""The shape of every step of a fast run.

The engine asks the latency model about each step that holds prompts when it begins. Steps in which everyone decodes it
takes many at a time, but what they held follows from who got a token in them.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.step_log import StepLog
from blis_sim.engine.units import Micros
from calibrate.fit.recording import Recording

Ints = npt.NDArray[np.int64]

_DECODES = BatchShape._fields.index("decode_requests")
_CONTEXT = BatchShape._fields.index("decode_context_tokens")


@dataclass(slots=True)
class _PromptRecorder(WrappedLatency):
    """`model`, with the shape of each step that holds prompts by the number of the step."""

    engine: Engine | None = None
    """Who asks."""
    with_prompts: dict[int, BatchShape] = field(default_factory=dict)

    def step_time(self, shape: BatchShape) -> Micros:
        if shape.prefill_tokens and self.engine is not None:
            self.with_prompts[self.engine.num_begun_steps] = shape
        return self.model.step_time(shape)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: when steps began and ended, and the requests in the order of the recording."""

    steps: StepLog
    sequences: SequenceOf[Sequence | None]

    def decodes_by_step(self) -> tuple[Ints, Ints]:
        """How many requests decoded in each step, and the sum of their contexts: of a request, its prompt and all
        tokens before the latest."""
        num_steps = len(self.steps)
        count = np.zeros(num_steps + 1, np.int64)
        context = np.zeros(num_steps + 1, np.int64)
        """Changes from step to step: of the count, and of what the sum is beside count times step."""
        for sequence in self.sequences:
            num_before = 0 if sequence is None else sequence.request.input_tokens
            for first, length in () if sequence is None else sequence.token_runs:
                count[first] += 1
                count[first + length] -= 1
                context[first] += num_before - first
                context[first + length] -= num_before - first
                num_before += length
        counts = np.cumsum(count)[:-1]
        return counts, np.cumsum(context)[:-1] + counts * np.arange(num_steps)

    def outputs_by_step(self) -> Ints:
        """How many requests got a token from each step."""
        counts = self.decodes_by_step()[0]
        firsts = [each.first_token_step for each in self.sequences if each is not None]
        np.add.at(counts, [step for step in firsts if step is not None], 1)
        return counts


def recorded(recording: Recording, config: EngineConfig, latency: LatencyModel) -> tuple[Ints, Run]:
    """Simulate `recording`: a row per step, whose columns are the fields of `BatchShape`, and the run."""
    recorder = _PromptRecorder(latency)
    engine = Engine(config, recorder, reports_steps=False)
    recorder.engine = engine
    run = Run(engine.steps, recording.sequences(engine))
    shapes = np.zeros((len(engine.steps), len(BatchShape._fields)), np.int64)
    shapes[:, _DECODES], shapes[:, _CONTEXT] = run.decodes_by_step()
    if recorder.with_prompts:
        shapes[list(recorder.with_prompts)] = list(recorder.with_prompts.values())
    return shapes, run
