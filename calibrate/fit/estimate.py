"""Better coefficients from trials: slopes explain the difference between measured and simulated latencies.

Which steps a request falls into is partly chance, so the slopes of one run are noisy, and noise in what explains makes
effects look smaller than they are. Two runs in different phases cure that: the slopes of one explain what the other has
left over (instrumental variables), and the other way round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import lsq_linear

from calibrate.fit.recording import Recording, Spans
from calibrate.fit.terms import Learnable, Terms
from calibrate.fit.trial import Slopes, Trial
from replay.simulation.uncertainty import ServerSpread

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
"""Spreads beside that, and of a typical stretch (longer ones add up more chance), before they are scaled to what the
errors turn out to be."""
SPREAD_TURN = 0.05
"""Relative error of a time between two tokens of a step, for clients take time, too."""
MIN_FOR_SPREAD = 20
MAD_TO_SPREAD = 1.4826
MIN_SPREAD = 0.02
SPEED_SPREAD = 0.005
"""Two servers of the same kind differ in speed by as much, and one server at different times."""
MIN_SPEED_SPREAD = 0.001
"""Servers differ by less most of the time: large differences are rare, and so the usual speed is that of most requests
(a Laplace distribution that is round at its top)."""


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
    """Errors of one kind with their weights; the slopes of the run they come from and those of the other run, for what
    is learned and for the speed in each span."""

    errors_us: Floats
    weights: Floats
    slopes: Floats
    instruments: Floats


def improved_estimate(
    pairs: Sequence[Pair], deployed: Learnable, current: Estimate, share: float, spans: Spans
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
    pairs: Sequence[Pair], deployed: Learnable, current: Estimate, spans: Spans
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
    information: Floats, gradient: Floats, pairs: Sequence[Pair], terms: Terms, places: Ints, current: Estimate
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
