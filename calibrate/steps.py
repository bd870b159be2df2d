"""Recorded steps as what a latency model is asked for and answers: sums over a batch, and a duration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape, RecentPrompts
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.latency.model import LatencyModel
from calibrate.compare import Comparison, compare
from traces.steps import Step

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Steps whose batches are known well enough to time them, in order.

    With `has_starts` a duration is that of a cycle. It goes from the beginning of a step to that of the next one, where
    a request decodes in both. Without, it lacks what the engine does between two executions.
    """

    shapes: Ints
    """A row for each, whose columns are the fields of `BatchShape`."""
    durations_us: Floats
    found_idle: Bools
    """Steps that began on an idle engine, as far as that shows."""
    has_starts: bool
    num_estimated: int
    """Steps whose contexts are estimated from the share of the KV cache in use."""
    num_left_out: int
    """Steps with drafts to verify, or without a request, and those that came alone with an idle time behind."""

    def __len__(self) -> int:
        return len(self.durations_us)

    def part(self, first: float, end: float) -> "MeasuredSteps":
        """The steps from a share of them up to another."""
        rows = slice(round(len(self) * first), round(len(self) * end))
        return MeasuredSteps(
            self.shapes[rows],
            self.durations_us[rows],
            self.found_idle[rows],
            self.has_starts,
            self.num_estimated,
            self.num_left_out,
        )


class _Measured(NamedTuple):
    shape: BatchShape
    duration_us: float
    found_idle: bool
    is_estimated: bool


def measured_steps(steps: Sequence[Step], config: EngineConfig) -> MeasuredSteps:
    """Return what can be learned from recorded steps of a server with this configuration."""
    found: list[_Measured] = []
    in_order = sorted(steps, key=lambda step: (step.engine, step.step))
    for _, of_engine in groupby(in_order, key=lambda step: step.engine):
        found += _measured(list(of_engine), config)
    shapes = np.array([each.shape for each in found], np.int64).reshape(-1, len(BatchShape._fields))
    return MeasuredSteps(
        shapes=shapes,
        durations_us=np.array([each.duration_us for each in found], np.float64),
        found_idle=np.array([each.found_idle for each in found], np.bool_),
        has_starts=bool(steps) and all(step.started_us is not None for step in steps),
        num_estimated=sum(each.is_estimated for each in found),
        num_left_out=len(steps) - len(found),
    )


def _measured(steps: list[Step], config: EngineConfig) -> Iterator[_Measured]:
    """The steps of one engine, each beside those before and after it."""
    recent, at_us = RecentPrompts(), 0
    before: Step | None = None
    for step, after in pairwise([*steps, None]):
        assert step is not None
        at_us = at_us if step.started_us is None else step.started_us
        duration_us = _duration_us(step, after)
        is_usual = step.decode_tokens == step.decode_requests and step.prefill_requests + step.decode_requests > 0
        if duration_us is not None and is_usual and step.duration_us > 0:
            shape, is_estimated = _shape(step, before, config)
            if shape.prefill_tokens:
                shape = recent.with_recent(shape, at_us)
            yield _Measured(shape, duration_us, _found_idle(step, before), is_estimated)
        at_us += step.duration_us
        recent.add(step.prefill_tokens, at_us)
        before = step


def _duration_us(step: Step, after: Step | None) -> float | None:
    """The cycle of a step whose beginning is known; None where idle time may follow."""
    if step.started_us is None:
        return step.duration_us
    if after is None or after.started_us is None or after.step != step.step + 1 or not after.decode_requests:
        return None
    cycle_us = after.started_us - step.started_us
    return cycle_us if cycle_us > 0 else None


def _found_idle(step: Step, before: Step | None) -> bool:
    if before is None or step.step != before.step + 1:
        return not step.decode_requests
    if step.started_us is not None and before.started_us is not None:
        # A request that decodes was there before, and so was its engine's work.
        return not step.decode_requests and step.started_us > before.started_us + 1.5 * before.duration_us
    return not step.decode_requests and before.prefill_requests == 0


def _shape(step: Step, before: Step | None, config: EngineConfig) -> tuple[BatchShape, bool]:
    """The sums of a step, and whether contexts in them are estimated.

    Of several prefills of unknown lengths each counts as the mean of them, and as a whole prompt.
    """
    tokens, num_prefills = step.prefill_tokens, step.prefill_requests
    context, squared = step.prefill_context_tokens or 0, step.prefill_tokens_squared
    squared = squared if squared is not None else tokens * tokens // max(1, num_prefills)
    work = step.prefill_context_work
    work = work if work is not None else tokens * context // max(1, num_prefills)
    of_prompts = step.prefill_prompt_work
    of_prompts = of_prompts if of_prompts is not None else squared + work
    decode_context = step.decode_context_tokens
    is_estimated = decode_context is None and step.decode_requests > 0
    if decode_context is None:
        decode_context = _context_in_use(step, before, config)
    counts = (num_prefills, tokens, squared, context, work, of_prompts, step.decode_requests, decode_context)
    return BatchShape(*counts), is_estimated


def _context_in_use(step: Step, before: Step | None, config: EngineConfig) -> int:
    """Return an estimate of the tokens that a step's decoding requests had computed, from the blocks in use before it.

    The last block of each is half empty on average, and what has ended is not in use any more.
    """
    if before is None or before.kv_usage is None:
        return 0
    unused = step.decode_requests * (config.block_size_tokens - 1) // 2
    return max(0, round(before.kv_usage * config.kv_capacity_tokens) - unused)


class StepErrors(NamedTuple):
    """How well a latency model predicts the durations of recorded steps of one kind."""

    kind: str
    comparison: Comparison


def step_errors(measured: MeasuredSteps, latency: LatencyModel) -> list[StepErrors]:
    """Return the errors of all steps, of those with prompts, and of those that only decode; kinds without steps are
    left out."""
    predicted = np.array(
        [
            latency.step_time(BatchShape(*shape)) + (latency.idle_start_time(1_000_000) if is_idle else 0)
            for shape, is_idle in zip(measured.shapes.tolist(), measured.found_idle.tolist(), strict=True)
        ],
        np.float64,
    )
    has_prompts = measured.shapes[:, BatchShape._fields.index("prefill_requests")] > 0
    kinds = {"all": np.ones(len(measured), np.bool_), "with prompts": has_prompts, "decode only": ~has_prompts}
    return [
        StepErrors(kind, compare(measured.durations_us[members], predicted[members]))
        for kind, members in kinds.items()
        if members.any()
    ]
