"""Rounds of trials and better estimates, their score, and how much servers of one kind differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import PhaseShifted
from calibrate.compare import Comparison, compare
from calibrate.fit.estimate import (
    Estimate,
    Pair,
    Slopes,
    add_errors,
    add_turns,
    bounded,
    errors_by_recording,
    expectations,
    improved_estimate,
    learned_places,
    run_trial,
)
from calibrate.fit.recording import Recording, Spans, spans_of
from calibrate.fit.terms import Learnable
from calibrate.steps import StepErrors, step_errors
from replay.output.ensemble import averaged
from replay.simulation.record import Record
from replay.simulation.uncertainty import ARITHMETIC, ARITHMETIC_SPREAD, SPEED_SPREAD, ServerSpread

# How much servers of one kind differ: the mean latencies of each recording, predicted from all others.
#
# A recording is left out of the least-squares problem of the last round, which needs no simulation. Intervals are of
# one figure at a time, so each figure is explained by the spreads on its own.

Floats = npt.NDArray[np.float64]

MIN_RECORDINGS = 3
"""With fewer recordings the usual spreads are more accurate than an estimate from the remaining errors."""
USUAL_RECORDINGS = 2.0
"""The usual spreads of servers of one kind count as much as so many recordings."""
_NUM_FIGURES = 2
"""The mean TTFT and the mean time from the first token to the last."""


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """The relative errors of both figures of a recording that was left out."""

    errors: Floats
    variances: Floats
    """The variances that the uncertainty of the coefficients accounts for."""
    step_shares: Floats
    arithmetic_shares: Floats
    """The shares of a figure that are steps, and arithmetic of steps."""
    phase_differences: Floats
    """The relative differences between two trials."""


def server_spread(pairs: Sequence[Pair], deployed: Learnable, current: Estimate, spans: Spans) -> ServerSpread | None:
    """Return the spreads that explain the errors of recordings that are left out, each predicted from the others.

    `pairs` are trials with the values of `current`. Recordings of clients with a cap count for the coefficients only:
    latencies of a saturated server are those of its queue. None with too few recordings without a cap, and for a
    latency model without coefficients of arithmetic.
    """
    open_loops = [number for number, pair in enumerate(pairs) if _is_open_loop(pair)]
    if len(open_loops) < MIN_RECORDINGS or not set(ARITHMETIC) <= set(deployed.terms.step):
        return None
    left_out = _left_out(pairs, open_loops, deployed, current, spans)
    # Chance is in the recorded run and, halved, in the mean of two trials; half a squared difference is one variance.
    chance = 1.5 * np.mean([each.phase_differences**2 for each in left_out], axis=0) / 2
    usual = np.log([SPEED_SPREAD, ARITHMETIC_SPREAD])

    def loss(logarithms: Floats) -> float:
        speed, arithmetic = np.exp(2 * logarithms)
        total = USUAL_RECORDINGS / 2 * float(np.sum(2 * logarithms + np.exp(2 * (usual - logarithms))))
        for each in left_out:
            variances = each.variances + chance
            variances = variances + each.step_shares**2 * speed + each.arithmetic_shares**2 * arithmetic
            total += float(np.sum(np.log(variances) + each.errors**2 / variances)) / 2
        return total

    found = np.exp(minimize(loss, usual, method="Nelder-Mead").x)
    return ServerSpread(speed=float(found[0]), arithmetic=float(found[1]))


def _is_open_loop(pair: Pair) -> bool:
    recording = pair.recording
    measured = np.isfinite(recording.ttft_us).any() and np.isfinite(recording.decode_us).any()
    return recording.max_concurrency is None and bool(measured)


def _left_out(
    pairs: Sequence[Pair], numbers: Sequence[int], deployed: Learnable, current: Estimate, spans: Spans
) -> list[_LeftOut]:
    terms, places = deployed.terms, learned_places(deployed)
    prior = expectations(terms, places, current)
    size = len(prior[1])
    information, gradient = np.zeros((len(pairs), size, size)), np.zeros((len(pairs), size))
    for number, pair in enumerate(pairs):
        add_turns(information[number], gradient[number], [pair], terms, places, current)
    for number, errors in errors_by_recording(pairs, deployed, current, spans):
        add_errors(information[number], gradient[number], errors)
    room = np.concatenate([current.values[places] - terms.least_values()[places], np.full(spans.total, 0.5)])
    found = []
    for number in numbers:
        others = prior[0] + information.sum(axis=0) - information[number]
        others = (others + others.T) / 2
        change = bounded(others, prior[1] + gradient.sum(axis=0) - gradient[number], room)[: len(places)]
        covariance = np.linalg.pinv(others)[: len(places), : len(places)]
        found.append(_errors_of(pairs[number], change, covariance, deployed, current))
    return found


def _errors_of(pair: Pair, change: Floats, covariance: Floats, deployed: Learnable, current: Estimate) -> _LeftOut:
    terms, places = deployed.terms, learned_places(deployed)
    arithmetic = [terms.place(name) for name in ARITHMETIC]
    rows = []
    for measured_us, one, other in (
        (pair.recording.ttft_us, pair.one.ttft, pair.other.ttft),
        (pair.recording.decode_us, pair.one.decode, pair.other.decode),
    ):
        known = np.isfinite(measured_us) & np.isfinite(one.simulated_us) & np.isfinite(other.simulated_us)
        real_us = float(measured_us[known].mean())
        trials = [_mean(each, known) for each in (one, other)]
        slopes = (trials[0][1] + trials[1][1]) / 2 / real_us
        predicted_us = (trials[0][0] + trials[1][0]) / 2
        rows.append(
            (
                predicted_us / real_us - 1 + float(slopes[places] @ change),
                float(slopes[places] @ covariance @ slopes[places]),
                float(slopes[: len(terms.step)] @ current.values[: len(terms.step)]),
                float(slopes[arithmetic] @ current.values[arithmetic]),
                (trials[0][0] - trials[1][0]) / real_us,
            )
        )
    return _LeftOut(*np.array(rows, np.float64).reshape(_NUM_FIGURES, 5).T)


def _mean(slopes: Slopes, known: npt.NDArray[np.bool_]) -> tuple[float, Floats]:
    """Return the mean of a simulated duration and of its slopes."""
    means: Floats = slopes.per_term[known].mean(axis=0)
    return float(slopes.simulated_us[known].mean()), means


# Rounds of trials and better estimates, until the coefficients explain the recordings, and their score.


@dataclass(frozen=True, slots=True)
class Score:
    """Measured against predicted latencies of the requests that have both; `itl` None if no output has two tokens."""

    name: str
    num_requests: int
    ttft: Comparison
    e2e: Comparison
    itl: Comparison | None


def score(recording: Recording, latency: LatencyModel, config: EngineConfig, num_phases: int) -> Score | None:
    """Replay and compare; None where nothing can be compared."""
    if not recording.arrivals:
        return None
    runs = []
    for phase in range(num_phases):
        engine = Engine(config, PhaseShifted(latency, phase), reports_steps=False)
        runs.append(recording.simulated(engine))
    predicted = _predicted(recording, averaged(runs))
    e2e_us = recording.ttft_us + np.nan_to_num(recording.decode_us)
    known = np.isfinite(recording.ttft_us) & np.isfinite(predicted).all(axis=1)
    if not known.any():
        return None
    gaps = np.array([max(arrival.request.output_tokens - 1, 1) for arrival in recording.arrivals])
    has_gaps = known & np.isfinite(recording.decode_us)
    itl = None
    if has_gaps.any():
        itl = compare((recording.decode_us / gaps)[has_gaps], predicted[has_gaps, 2])
    return Score(
        name=recording.name,
        num_requests=int(known.sum()),
        ttft=compare(recording.ttft_us[known], predicted[known, 0]),
        e2e=compare(e2e_us[known], predicted[known, 1]),
        itl=itl,
    )


def _predicted(recording: Recording, record: Record) -> Floats:
    """TTFT, E2E and mean ITL of each request in the order of the recording; nan for those that did not complete."""
    place_of = {request_id: place for place, request_id in enumerate(record.ids)}
    places = [place_of[arrival.request.id] for arrival in recording.arrivals]
    columns = np.column_stack([record.ttft_us, record.e2e_us, record.itl_mean_us])
    predicted: Floats = np.where(record.is_completed[:, None], columns, np.nan)[places]
    return predicted


HELD_OUT_SHARE = 0.2
ROUNDS = (1.0, 1.0, 1.0, 0.7, 0.7)
"""Step share of each of the first rounds towards its least-squares solution."""
FINAL_ROUNDS = (0.7, 0.5, 0.4, 0.33, 0.28, 0.25, 0.22, 0.2, 0.18, 0.17, 0.15, 0.14)
"""Step share of each of the last rounds, of which long recordings get fewer: ever shorter steps average out the chance
of single runs."""
MIN_FINAL_ROUNDS = 3
ROUNDS_OF_STEPS = 12
"""Rounds of recordings that have steps alone, in which no chance is averaged out."""
REQUESTS_PER_ROUND = 8_000
REQUESTS_PER_FINAL_ROUND = 24_000
REQUESTS_IN_FINAL_ROUNDS = 60_000
SCORED_PHASES = 4
ALTERNATIVE_ROUNDS = (1.0, 1.0)
"""Step share of each round of an alternative before it is judged."""
CLEARLY_BETTER = 0.99
"""An alternative is taken if the sum of errors falls below this share of what it is without."""
LARGEST_ERROR = 0.5
"""Larger relative errors count as this: in an engine that never rests one step sooner or later may change all that
follows."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Numbers of simulated requests: in each of the first rounds, in each of the last rounds, and in the last rounds
    together."""

    per_round: int = REQUESTS_PER_ROUND
    per_final_round: int = REQUESTS_PER_FINAL_ROUND
    in_final_rounds: int = REQUESTS_IN_FINAL_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningResult:
    """The result of learning: the estimate, the largest sums of all steps simulated, and the scores on other requests.

    These are the last fifth of each recording, predicted by coefficients learned from the rest.
    """

    deployed: Learnable
    estimate: Estimate
    spans: Spans
    largest: BatchShape
    held_out: list[Score]
    held_out_steps: dict[str, list[StepErrors]] = field(default_factory=dict)
    """Errors of recorded steps, by recording, on the last fifth of each."""


def learn(
    recordings: Sequence[Recording],
    deployed: Learnable,
    config: EngineConfig,
    *,
    seed: int = 0,
    budget: Budget = Budget(),
    on_progress: Callable[[], None] | None = None,
) -> LearningResult:
    """Learn from all but the last fifth of each recording, score on that, then learn from all.

    `on_progress` is called `num_trials` times. Equal seeds give equal coefficients.
    """
    done = on_progress or _no_progress
    spans = spans_of(recordings)
    work = _LearningState(deployed, config, spans, seed, done)
    terms = deployed.terms
    estimate = Estimate(terms.expected_values(), terms.expected_spreads(), np.zeros(spans.total))
    for share in ROUNDS:
        kept = [each.without_tail(HELD_OUT_SHARE) for each in _cut(recordings, budget.per_round)]
        estimate = work.round(kept, estimate, share)
    kept = [each.without_tail(HELD_OUT_SHARE) for each in recordings]
    estimate = work.choose(kept, estimate, budget)
    held_out = [_score(each, work, estimate) for each in _cut(recordings, budget.per_final_round)]
    of_steps = {
        each.name: step_errors(each.steps.part(1 - HELD_OUT_SHARE, 1), work.deployed.latency(estimate.values))
        for each in recordings
        if each.steps is not None
    }
    for share in _final_rounds(recordings, budget):
        estimate = work.round(_cut(recordings, budget.per_final_round), estimate, share)
    scores = [each for each in held_out if each is not None]
    estimate = work.with_servers(estimate)
    return LearningResult(
        deployed=work.deployed,
        estimate=estimate,
        spans=spans,
        largest=work.largest,
        held_out=scores,
        held_out_steps=of_steps,
    )


def relearn(
    recordings: Sequence[Recording],
    deployed: Learnable,
    config: EngineConfig,
    start: Estimate,
    *,
    seed: int = 0,
    budget: Budget = Budget(),
) -> tuple[Learnable, Estimate]:
    """Learn from all of each recording, from the values of an estimate of the same server on.

    Returns what was chosen of the alternatives that the deployment has, and the estimate.

    The speeds of `start`, which belong to parts of other recordings, are not used.
    """
    spans = spans_of(recordings)
    work = _LearningState(deployed, config, spans, seed, _no_progress)
    estimate = Estimate(start.values, start.spreads, np.zeros(spans.total))
    estimate = work.choose(recordings, estimate, budget)
    for share in (1.0, *_final_rounds(recordings, budget)):
        estimate = work.round(_cut(recordings, budget.per_final_round), estimate, share)
    return work.deployed, work.with_servers(estimate)


def num_trials(recordings: Sequence[Recording], deployed: Learnable, budget: Budget = Budget()) -> int:
    """Return the number of calls of `progress` by `learn`."""
    num_rounds = len(ROUNDS) + len(_final_rounds(recordings, budget))
    if len(deployed.alternatives()) > 1 and any(each.max_concurrency is not None for each in recordings):
        num_rounds += len(deployed.alternatives()) * len(ALTERNATIVE_ROUNDS)
    return len(recordings) * (2 * num_rounds + 1)


def _final_rounds(recordings: Sequence[Recording], budget: Budget) -> tuple[float, ...]:
    num_requests = min(sum(len(each.arrivals) for each in recordings), budget.per_final_round)
    if not num_requests:
        return (1.0,) * ROUNDS_OF_STEPS
    return FINAL_ROUNDS[: max(MIN_FINAL_ROUNDS, budget.in_final_rounds // max(1, num_requests))]


def _no_progress() -> None:
    """No-op default for progress."""


def _cut(recordings: Sequence[Recording], num_requests: int) -> list[Recording]:
    """The first requests of each, so many together; short ones leave their share to the others."""
    remaining, left = num_requests, len(recordings)
    lengths: dict[int, int] = {}
    for place in sorted(range(len(recordings)), key=lambda place: len(recordings[place].arrivals)):
        lengths[place] = min(len(recordings[place].arrivals), remaining // left)
        remaining, left = remaining - lengths[place], left - 1
    return [recording.head(lengths[place]) for place, recording in enumerate(recordings)]


def _score(recording: Recording, work: "_LearningState", estimate: Estimate) -> Score | None:
    held_out = recording.only_tail(HELD_OUT_SHARE)
    scored = score(held_out, work.deployed.latency(estimate.values), work.config, SCORED_PHASES)
    work.done()
    return scored


def _loss(recordings: Sequence[Recording], deployed: Learnable, config: EngineConfig, estimate: Estimate) -> float:
    """Return the sum of the relative errors of the time to the first token, of large ones their limit."""
    total = 0.0
    for recording in recordings:
        simulated_us = run_trial(recording, deployed, config, estimate.values, 0).ttft.simulated_us
        errors = np.abs(simulated_us / recording.ttft_us - 1)
        total += float(np.nansum(np.minimum(errors, LARGEST_ERROR)))
    return total


class _LearningState:
    """State shared by all rounds."""

    def __init__(
        self, deployed: Learnable, config: EngineConfig, spans: Spans, seed: int, done: Callable[[], None]
    ) -> None:
        self.deployed = deployed
        self.config = config
        self.spans = spans
        self.done = done
        self.largest = BatchShape()
        self._phase = seed << 16
        self._latest: tuple[list[Pair], Estimate] | None = None
        """The trials of the latest round, and the estimate that they were simulated with."""

    def choose(self, recordings: Sequence[Recording], estimate: Estimate, budget: Budget) -> Estimate:
        """Take the alternative of the deployment that explains the recordings clearly better, if one does.

        Returns the estimate to go on from. Clients with a cap load a server so much that alternatives differ, perhaps
        late in a recording. These recordings are judged as a whole, each alternative by coefficients of its own.
        Coefficients that were learned without a mechanism would stand in for it.
        """
        alternatives = self.deployed.alternatives()
        capped = [each for each in recordings if each.max_concurrency is not None]
        cut, least, best = _cut(recordings, budget.per_round), float("inf"), estimate
        for each in alternatives if len(alternatives) > 1 else ():
            learned, margin = estimate, CLEARLY_BETTER if each is not alternatives[0] else 1.0
            for share in ALTERNATIVE_ROUNDS if capped else ():
                learned = self.round(cut, learned, share, each)
            if (loss := _loss(capped or cut, each, self.config, learned)) < least * margin:
                self.deployed, least, best = each, loss, learned
        return best

    def round(
        self, recordings: Sequence[Recording], estimate: Estimate, share: float, deployed: Learnable | None = None
    ) -> Estimate:
        """Two trials of each recording, and the estimate they lead to; `deployed` takes the place of what is chosen."""
        deployed = deployed or self.deployed
        pairs = []
        for recording in recordings:
            trials = []
            for _ in range(2):
                self._phase += 1
                trials.append(run_trial(recording, deployed, self.config, estimate.values, self._phase))
                self.done()
            pairs.append(Pair(recording, *trials))
        # Steps simulated in the first rounds, with poor coefficients, are unlike the batches of the real server.
        self.largest = BatchShape(*map(max, *(trial.largest for pair in pairs for trial in (pair.one, pair.other))))
        self._latest = pairs, estimate
        return improved_estimate(pairs, deployed, estimate, share, self.spans)

    def with_servers(self, estimate: Estimate) -> Estimate:
        """Return the estimate with how much servers differ, by the trials of the latest round."""
        if self._latest is None:
            return estimate
        return replace(estimate, servers=server_spread(self._latest[0], self.deployed, self._latest[1], self.spans))
