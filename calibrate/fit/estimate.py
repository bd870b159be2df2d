"""Coefficients from trials: simulated runs, derivatives of latencies, and slopes that explain differences."""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import lsq_linear

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import StepLog
from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import output_waits
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PhaseShifted, WrappedLatency
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from calibrate.compare import CalibrateError
from calibrate.fit.recording import Recording, Spans
from calibrate.fit.terms import Learnable, Terms
from replay.simulation.record import turns_in
from replay.simulation.uncertainty import ServerSpread

# One simulated run of a recording: the shape of each step, and derivatives of latencies by coefficients.
#
# The engine calls the latency model for each step with prompts when the step begins. The engine takes many decode-
# only steps at a time; their shapes follow from the requests that got a token in them.

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

    A token waits for those of its step up to its own. As long as a busy process has not caught up, it waits for all
    others since that was idle.
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
    steps: Slopes | None
    """A row per recorded step; None without recorded steps."""
    typical_step_us: float
    found_idle: Bools
    """Requests that were queued while no step was under way."""
    largest: BatchShape
    """The largest value of each sum."""


def run_trial(recording: Recording, deployed: Learnable, config: EngineConfig, values: Floats, phase: int) -> Trial:
    """Simulate `recording` with the coefficients `values`, in one phase of its steps.

    Raises CalibrateError when no request fits the simulated server.
    """
    if not recording.arrivals:
        assert recording.steps is not None
        nothing = Slopes(np.zeros(0), np.zeros((0, len(deployed.terms.names))))
        return Trial(
            ttft=nothing,
            decode=nothing,
            stretches=None,
            steps=_told_steps(recording, deployed, values),
            typical_step_us=float(np.median(recording.steps.durations_us)),
            found_idle=np.zeros(0, np.bool_),
            largest=BatchShape(*recording.steps.shapes.max(axis=0).tolist()),
        )
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
        steps=_told_steps(recording, deployed, values),
        typical_step_us=float(np.median(steps.ends - steps.starts)),
        found_idle=requests.has_token & (steps.starts[steps.under_way(requests)] >= requests.queued),
        largest=BatchShape(*shapes.max(axis=0).tolist()),
    )


def _told_steps(recording: Recording, deployed: Learnable, values: Floats) -> Slopes | None:
    """Predicted times of the recorded steps."""
    steps, terms = recording.steps, deployed.terms
    if steps is None or not len(steps):
        return None
    per_term = np.zeros((len(steps), len(terms.names)))
    per_term[:, : len(terms.step)] = deployed.basis(values, steps.shapes)
    if "idle_start_us" in terms.step:
        per_term[:, terms.place("idle_start_us")] = steps.found_idle
    return Slopes(per_term @ values, per_term)


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
    """The rest of the step under way when the request is queued, and the steps up to the one with its first token.

    What passes before and after belongs to it.
    """
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


# Better coefficients from trials: slopes explain the difference between measured and simulated latencies.
#
# Which steps a request falls into is partly chance, so the slopes of one run are noisy, and noise in what explains
# makes effects look smaller than they are. Two runs in different phases cure that: the slopes of one explain what the
# other has left over (instrumental variables), and the other way round.

INDEPENDENT_SHARE = 0.3
"""Requests that run together share their steps and so their errors: they weigh as much as this share of independent
ones. Requests of a recording with n times as many in flight as the least busy recording has weigh at most an n-th."""
MAX_INDEPENDENT = 1_200
"""More requests make chance smaller, but not the errors of the model itself. Without this limit, small effects that no
term describes would be forced upon terms that the recordings hardly determine."""
MAX_INDEPENDENT_STRETCHES = 100
"""The error of each recording: its stretches are independent, but from one server, and servers differ."""
OUTLIER_SPREADS = 3.0
"""Beyond so many spreads an error counts less, the less the larger it is (Huber)."""
PHASE_SPREAD = 0.4
"""Standard deviation of a time to first token, in steps: two uniform phases differ by as much. A request that finds an
idle server waits for no step."""
RELATIVE_SPREAD_TTFT = 0.02
RELATIVE_SPREAD_DECODE = 0.01
SPREAD_STRETCH = 0.01
"""Spreads beside that, and of a typical stretch, before they are scaled to the errors. Longer stretches add up more
chance."""
SPREAD_STEP = 0.01
"""Relative spread of a recorded step, before it is scaled, too."""
MAX_INDEPENDENT_STEPS = 300
"""Steps of a recording, like its stretches, have the errors of the model in common."""
SPREAD_TURN = 0.05
"""Relative error of a time between two tokens of a step, for clients take time, too."""
MIN_FOR_SPREAD = 20
MAD_TO_SPREAD = 1.4826
MIN_SPREAD = 0.02
SPEED_SPREAD = 0.005
"""Two servers of the same kind differ in speed by as much, and one server at different times."""
MIN_SPEED_SPREAD = 0.001
"""Servers differ by less most of the time.

Large differences are rare, and so the usual speed is that of most requests (a Laplace distribution that is round at its
top).
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trials of one recording that differ in phase."""

    recording: Recording
    one: Trial
    other: Trial


@dataclass(frozen=True, slots=True)
class Estimate:
    """Coefficients in the order of the terms, their spreads, and by which share the server was slower in each span."""

    values: Floats
    spreads: Floats
    slower: Floats
    covariance: Floats | None = None
    """Covariance of the learned coefficients, in the order of the terms; None before the first estimate."""
    servers: ServerSpread | None = None
    """Spread of servers of the recorded kind; None with too few recordings."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one kind with their weights.

    Slopes are those of the run they come from and of the other run, for what is learned and for the speed in each span.
    """

    errors_us: Floats
    weights: Floats
    slopes: Floats
    instruments: Floats


def improved_estimate(
    pairs: SequenceOf[Pair], deployed: Learnable, current: Estimate, share: float, spans: Spans
) -> Estimate:
    """Return the coefficients that explain most of the remaining errors, approached by `share` of the way.

    Each is held to its expectation as far as measurements do not determine it, and none falls below its least value.
    """
    terms = deployed.terms
    places = learned_places(deployed)
    num_terms, least = len(places), terms.least_values()[places]
    information, gradient = expectations(terms, places, current)
    add_turns(information, gradient, pairs, terms, places, current)
    for _, errors in errors_by_recording(pairs, deployed, current, spans):
        add_errors(information, gradient, errors)
    # The two directions of each pair are each other's transpose but for the weights.
    information = (information + information.T) / 2
    change = share * bounded(
        information, gradient, np.concatenate([current.values[places] - least, np.full(spans.total, 0.5)])
    )
    values, spreads = current.values.copy(), current.spreads.copy()
    values[places] = np.maximum(values[places] + change[:num_terms], least)
    covariance = np.asarray(np.linalg.pinv(information)[:num_terms, :num_terms], dtype=np.float64)
    spreads[places] = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return Estimate(values, spreads, current.slower + change[num_terms:], covariance)


def errors_by_recording(
    pairs: SequenceOf[Pair], deployed: Learnable, current: Estimate, spans: Spans
) -> Iterator[tuple[int, Errors]]:
    """Yield the errors of each pair of trials, with the number of its recording."""
    terms = deployed.terms
    places = learned_places(deployed)
    num_requests = sum(int(np.isfinite(pair.recording.ttft_us).sum()) for pair in pairs)
    independent = min(INDEPENDENT_SHARE, MAX_INDEPENDENT / max(1, num_requests))
    least_in_flight = min((pair.recording.mean_in_flight for pair in pairs), default=1.0)
    for number, pair in enumerate(pairs):
        members = spans.memberships(number, len(pair.recording.arrivals))
        weight = min(independent, least_in_flight / pair.recording.mean_in_flight)
        for errors in _all_errors(pair, current, members, weight, places, len(terms.step)):
            yield number, errors
        if pair.recording.steps is not None and pair.one.steps is not None:
            of_steps = spans.memberships(number, 1) if not len(members) else members
            yield number, _errors_of_steps(pair.recording, pair.one.steps, current, of_steps, places, len(terms.step))


def _errors_of_steps(
    recording: Recording, slopes: Slopes, current: Estimate, members: Floats, places: Ints, num_step_terms: int
) -> Errors:
    """Errors of the recorded steps, which no chance of a simulation is in.

    Where the time between two steps is not in their durations, requests alone show it: what is learned is by how much
    steps differ.
    """
    steps = recording.steps
    assert steps is not None
    of_steps = np.arange(len(steps)) * len(members) // len(steps)
    speeds = _Speeds(current, members[of_steps], places, num_step_terms)
    share = min(1.0, MAX_INDEPENDENT_STEPS / len(steps))
    errors = _errors(steps.durations_us, slopes, slopes, SPREAD_STEP * steps.durations_us, share, speeds)
    if steps.has_starts or not recording.arrivals:
        return errors
    total = errors.weights.sum()
    mean_slopes = errors.weights @ errors.slopes / total
    return Errors(
        errors.errors_us - errors.weights @ errors.errors_us / total,
        errors.weights,
        errors.slopes - mean_slopes,
        errors.instruments - mean_slopes,
    )


def add_errors(information: Floats, gradient: Floats, errors: Errors) -> None:
    """Add the equations of errors of one kind to a least-squares problem."""
    information += errors.instruments.T @ (errors.slopes * errors.weights[:, None])
    gradient += errors.instruments.T @ (errors.weights * errors.errors_us)


def learned_places(deployed: Learnable) -> Ints:
    """Return where what is learned stands among the terms."""
    return np.array([deployed.terms.place(name) for name in deployed.learnable()], np.int64)


def expectations(terms: Terms, places: Ints, current: Estimate) -> tuple[Floats, Floats]:
    """Prior of the coefficients, as information and pull."""
    spreads, means = terms.expected_spreads()[places], terms.expected_values()[places]
    size = len(places) + len(current.slower)
    certainty = 1 / (SPEED_SPREAD * np.maximum(np.abs(current.slower), MIN_SPEED_SPREAD))
    information = np.diag(np.concatenate([1 / spreads**2, certainty]))
    gradient = np.concatenate([(means - current.values[places]) / spreads**2, -current.slower * certainty])
    for names, expected in terms.together:
        among = np.zeros(size)
        among[: len(places)] = np.isin(places, [terms.place(name) for name in names])
        missing = expected.mean - among[: len(places)] @ current.values[places]
        information += np.outer(among, among) / expected.spread**2
        gradient = gradient + among * missing / expected.spread**2
    return information, gradient


def add_turns(
    information: Floats, gradient: Floats, pairs: SequenceOf[Pair], terms: Terms, places: Ints, current: Estimate
) -> None:
    """Add what token times show directly: how long the API server process takes to hand out a token."""
    if "output_turn_us" not in terms.request:
        return
    at = int(np.flatnonzero(places == terms.place("output_turn_us"))[0])
    for pair in pairs:
        stretches = pair.recording.stretches
        if stretches is not None and (turn_us := stretches.steps.turn_us):
            certainty = 1 / (SPREAD_TURN * turn_us) ** 2
            information[at, at] += certainty
            gradient[at] += certainty * (turn_us - current.values[places[at]])


def _all_errors(
    pair: Pair, current: Estimate, members: Floats, independent: float, places: Ints, num_step_terms: int
) -> Iterator[Errors]:
    speeds = _Speeds(current, members, places, num_step_terms)
    has_phase = ~(pair.one.found_idle & pair.other.found_idle & pair.recording.found_idle)
    for trial, other in ((pair.one, pair.other), (pair.other, pair.one)):
        step_us = PHASE_SPREAD * trial.typical_step_us
        for measured_us, slopes, others, phase_us, relative in (
            (pair.recording.ttft_us, trial.ttft, other.ttft, step_us * has_phase, RELATIVE_SPREAD_TTFT),
            (pair.recording.decode_us, trial.decode, other.decode, step_us, RELATIVE_SPREAD_DECODE),
        ):
            yield _errors(measured_us, slopes, others, np.hypot(phase_us, relative * measured_us), independent, speeds)
        stretches = pair.recording.stretches
        if stretches is not None and trial.stretches is not None and other.stretches is not None:
            durations_us = stretches.durations_us
            spread_us = SPREAD_STRETCH * np.sqrt(durations_us * float(np.median(durations_us)))
            share = min(1.0, MAX_INDEPENDENT_STRETCHES / len(stretches)) / 2
            within = _Speeds(current, members[stretches.requests], places, num_step_terms)
            yield _errors(durations_us, trial.stretches, other.stretches, spread_us, share, within)


@dataclass(frozen=True, slots=True)
class _Speeds:
    """Dependence of each measurement on the speed of the server in each span."""

    current: Estimate
    members: Floats
    """A row per measurement: its share in each span."""
    places: Ints
    """Errors of the further parameters."""
    num_step_terms: int

    def step_us(self, slopes: Slopes) -> Floats:
        """Contribution of steps to each simulated duration."""
        steps_us: Floats = slopes.per_term[:, : self.num_step_terms] @ self.current.values[: self.num_step_terms]
        return steps_us

    def slopes(self, slopes: Slopes) -> Floats:
        """Return the slopes of what is learned, and of the speed in each span; a single span sets the speed itself."""
        step_us = self.step_us(slopes) if self.members.shape[1] > 1 else np.zeros(len(self.members))
        return np.hstack([slopes.per_term[:, self.places], self.members * step_us[:, None]])


def _errors(
    measured_us: Floats, slopes: Slopes, others: Slopes, spread_us: Floats, share: float, speeds: _Speeds
) -> Errors:
    errors_us = measured_us - slopes.simulated_us - (speeds.members @ speeds.current.slower) * speeds.step_us(slopes)
    known = np.isfinite(errors_us) & np.isfinite(others.simulated_us)
    own, instruments = speeds.slopes(slopes)[known], speeds.slopes(others)[known]
    errors_us, spread_us = errors_us[known], spread_us[known]
    if len(errors_us) >= MIN_FOR_SPREAD:
        spread_us = spread_us * MAD_TO_SPREAD * max(float(np.median(np.abs(errors_us) / spread_us)), MIN_SPREAD)
    robust = np.minimum(1.0, OUTLIER_SPREADS * spread_us / np.maximum(np.abs(errors_us), 1e-9))
    return Errors(errors_us, share * robust / spread_us**2, own, instruments)


def bounded(information: Floats, gradient: Floats, max_decrease: Floats) -> Floats:
    """The change `d` that minimises d'Id/2 - p'd and takes nothing further down than by its `max_decrease`."""
    scale = 1 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    powers, directions = eigh(information * np.outer(scale, scale))
    roots = np.sqrt(np.maximum(powers, 1e-9))
    root = roots[:, None] * directions.T
    target = (directions.T @ (gradient * scale)) / roots
    solved = lsq_linear(
        root, target, bounds=(-max_decrease / scale - 1e-12, np.full(len(max_decrease), np.inf)), tol=1e-12
    )
    change: Floats = solved.x * scale
    return change
