"""How much servers of one kind differ: the mean latencies of each recording, predicted from all others.

A recording is left out of the least-squares problem of the last round, which needs no simulation. Intervals are of one
figure at a time, so each figure is explained by the spreads on its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from calibrate.fit.estimate import (
    Estimate,
    Pair,
    add_errors,
    add_turns,
    bounded,
    errors_by_recording,
    expectations,
    learned_places,
)
from calibrate.fit.recording import Spans
from calibrate.fit.terms import Learnable
from calibrate.fit.trial import Slopes
from replay.simulation.uncertainty import ARITHMETIC, ARITHMETIC_SPREAD, SPEED_SPREAD, ServerSpread

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
