"""One simulated run of a recording: the shape of each step, and derivatives of latencies by coefficients.

The engine calls the latency model for each step with prompts when the step begins. The engine takes many decode-only
steps at a time; their shapes follow from the requests that got a token in them.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import output_waits
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PhaseShifted, WrappedLatency
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.step_log import StepLog
from blis_sim.engine.units import Micros
from calibrate.fit.recording import Recording
from calibrate.fit.terms import Learnable, Terms
from calibrate.pair import CalibrateError
from replay.simulation.tokens import turns_in

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutputSerialization:
    """Waits of the first and the last token of each request, and by how much each grows per microsecond of a turn."""

    first_us: Floats
    first_turns: Floats
    last_us: Floats
    last_turns: Floats


def output_turns(
    ends_us: Ints, num_outputs: Ints, first_steps: Ints, last_steps: Ints, running_numbers: Ints, turn_us: float
) -> OutputSerialization:
    """Return the waits in a run with such steps, from the first and the last step of each request with a token.

    A token waits for those of its step up to its own, and as long as a busy process has not caught up, for all others
    since that was idle.
    """
    first_turns, last_turns = turns_in(first_steps, last_steps, running_numbers)
    queued_us = output_waits(ends_us, num_outputs, turn_us)
    num_before = np.cumsum(num_outputs) - num_outputs
    begun_at = np.maximum.accumulate(np.where(queued_us > 0, 0, np.arange(len(ends_us))))
    """The step with which the process became busy, for each step."""
    num_queued = num_before - num_before[begun_at]
    return OutputSerialization(
        first_us=queued_us[first_steps] + first_turns * turn_us,
        first_turns=(num_queued[first_steps] + first_turns).astype(np.float64),
        last_us=queued_us[last_steps] + last_turns * turn_us,
        last_turns=(num_queued[last_steps] + last_turns).astype(np.float64),
    )


_DECODES = BatchShape._fields.index("decode_requests")
_CONTEXT = BatchShape._fields.index("decode_context_tokens")
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _PromptRecorder(WrappedLatency):
    """`model`, with the shape of each step that holds prompts by the number of the step."""

    engine: Engine | None = None
    """The label of the recording."""
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
        """Return the number of requests that got a token from each step."""
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


@dataclass(frozen=True, slots=True)
class Slopes:
    """Simulated durations in microseconds, and by how much each grows per unit of each coefficient (a row each)."""

    simulated_us: Floats
    per_term: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run: per request the time to the first token and from there to the last; nan for those that never got it."""

    ttft: Slopes
    decode: Slopes
    stretches: Slopes | None
    """A row per stretch of measured steps; None without token times."""
    typical_step_us: float
    found_idle: Bools
    """Requests that were queued while no step was under way."""
    largest: BatchShape
    """The largest value of each sum."""


def run_trial(recording: Recording, deployed: Learnable, config: EngineConfig, values: Floats, phase: int) -> Trial:
    """Simulate `recording` with the coefficients `values`, in one phase of its steps.

    Raises CalibrateError when no request fits the simulated server.
    """
    latency = deployed.latency(values)
    shapes, run = recorded(recording, config, PhaseShifted(latency, phase))
    if not len(shapes):
        raise CalibrateError(f"no request of {recording.name} fits a context window of {config.max_model_len} tokens")
    steps = _Steps(run, deployed.basis(values, shapes), deployed.terms)
    requests = _Requests(recording, run)
    turns = _turns(steps, requests, values)
    return Trial(
        ttft=_ttft(steps, requests, values, turns),
        decode=_decode(steps, requests, values, turns),
        stretches=_stretches(recording, run, deployed, values),
        typical_step_us=float(np.median(steps.ends - steps.starts)),
        found_idle=requests.has_token & (steps.starts[steps.under_way(requests)] >= requests.queued),
        largest=BatchShape(*shapes.max(axis=0).tolist()),
    )


class _Steps:
    """The steps of a run as arrays."""

    def __init__(self, run: Run, basis: Floats, terms: Terms) -> None:
        self.terms = terms
        self.ends = run.steps.ends()
        self.outputs_at = run.steps.output_instants()
        self.starts = self.ends - run.steps.durations()
        self.basis = basis
        if "idle_start_us" in terms.step:
            basis[1:, terms.place("idle_start_us")] = self.starts[1:] > self.ends[:-1]
            basis[0, terms.place("idle_start_us")] = 1
        self.before = np.vstack([np.zeros(basis.shape[1]), np.cumsum(basis, axis=0)])
        """Sums of the basis over all steps before each."""
        self.num_outputs = run.outputs_by_step()

    def under_way(self, requests: "_Requests") -> Ints:
        """Return the step under way when each request is queued, or else the next one."""
        steps: Ints = np.minimum(self.ends.searchsorted(requests.queued, side="right"), requests.first)
        return steps

    def between(self, first: Ints, end: Ints) -> Floats:
        """Sum of the basis over the steps from `first` up to, not including, `end`."""
        sums: Floats = self.before[end] - self.before[first]
        return sums


class _Requests:
    """The requests of a run as arrays; those that never got a token stand at step 0 and are not `has_token`."""

    def __init__(self, recording: Recording, run: Run) -> None:
        sequences = run.sequences
        self.has_token = np.array([each is not None and each.first_token_step is not None for each in sequences])
        self.arrived = np.array([0 if each is None else each.arrived_at for each in sequences], np.int64)
        self.queued = np.array([_queued_at(each) for each in sequences], np.int64)
        self.first = np.array([_first_step(each) for each in sequences], np.int64)
        self.first_token_at = np.array([_first_token_at(each) for each in sequences], np.int64)
        self.last = np.array([_last_step(each) for each in sequences], np.int64)
        self.running_numbers = np.array([0 if each is None else each.running_number for each in sequences], np.int64)
        self.input_tokens = np.array([arrival.request.input_tokens for arrival in recording.arrivals], np.float64)

    def only_with_token(self, slopes: Slopes) -> Slopes:
        return Slopes(np.where(self.has_token, slopes.simulated_us, np.nan), slopes.per_term)


def _queued_at(sequence: Sequence | None) -> int:
    return 0 if sequence is None or sequence.queued_at is None else sequence.queued_at


def _first_step(sequence: Sequence | None) -> int:
    return 0 if sequence is None or sequence.first_token_step is None else sequence.first_token_step


def _first_token_at(sequence: Sequence | None) -> int:
    return 0 if sequence is None or sequence.first_token_at is None else sequence.first_token_at


def _last_step(sequence: Sequence | None) -> int:
    if sequence is None or not sequence.token_runs:
        return _first_step(sequence)
    first, count = sequence.token_runs[-1]
    return first + count - 1


def _turns(steps: _Steps, requests: _Requests, values: Floats) -> OutputSerialization | None:
    """Waits in the API server process; None where the latency model has none."""
    if "output_turn_us" not in steps.terms.request:
        return None
    turn_us = float(values[steps.terms.place("output_turn_us")])
    return output_turns(
        steps.outputs_at, steps.num_outputs, requests.first, requests.last, requests.running_numbers, turn_us
    )


def _ttft(steps: _Steps, requests: _Requests, values: Floats, turns: OutputSerialization | None) -> Slopes:
    """The rest of the step under way when the request is queued, the steps up to the one with its first token, and what
    passes before and after."""
    under_way = steps.under_way(requests)
    ends, starts = steps.ends[under_way], steps.starts[under_way]
    rest = np.clip((ends - requests.queued) / np.maximum(ends - starts, 1), 0, 1)
    terms = steps.terms
    per_term = np.zeros((len(requests.first), len(terms.names)))
    per_term[:, : len(terms.step)] = rest[:, None] * steps.basis[under_way]
    per_term[:, : len(terms.step)] += steps.between(under_way + 1, requests.first + 1)
    per_term[:, terms.place("arrival_us")] = 1
    per_term[:, terms.place("arrival_token_us")] = requests.input_tokens
    per_term[:, terms.place("output_us")] = 1
    num_outputs = steps.num_outputs[requests.first]
    per_term[:, terms.place("output_request_us")] = num_outputs
    after_us = values[terms.place("output_us")] + values[terms.place("output_request_us")] * num_outputs
    if turns is not None:
        per_term[:, terms.place("output_turn_us")] = turns.first_turns
        after_us = after_us + turns.first_us
    return requests.only_with_token(Slopes(requests.first_token_at - requests.arrived + after_us, per_term))


def _decode(steps: _Steps, requests: _Requests, values: Floats, turns: OutputSerialization | None) -> Slopes:
    terms = steps.terms
    per_term = np.zeros((len(requests.first), len(terms.names)))
    per_term[:, : len(terms.step)] = steps.between(requests.first + 1, requests.last + 1)
    more_outputs = steps.num_outputs[requests.last] - steps.num_outputs[requests.first]
    per_term[:, terms.place("output_request_us")] = more_outputs
    decode_us = (
        steps.ends[requests.last] - requests.first_token_at + values[terms.place("output_request_us")] * more_outputs
    )
    if turns is not None:
        per_term[:, terms.place("output_turn_us")] = turns.last_turns - turns.first_turns
        decode_us = decode_us + turns.last_us - turns.first_us
    return requests.only_with_token(Slopes(decode_us, per_term))


def _stretches(recording: Recording, run: Run, deployed: Learnable, values: Floats) -> Slopes | None:
    """Predicted times of the measured steps; only cache hits come from the simulation."""
    stretches = recording.stretches
    if stretches is None or not len(stretches):
        return None
    cached_tokens = np.array([0 if each is None else each.num_cached_tokens for each in run.sequences], np.int64)
    shapes, begins = stretches.shapes(cached_tokens)
    terms = deployed.terms
    per_term = np.zeros((len(begins), len(terms.names)))
    per_term[:, : len(terms.step)] = np.add.reduceat(deployed.basis(values, shapes), begins, axis=0)
    return Slopes(per_term @ values, per_term)
