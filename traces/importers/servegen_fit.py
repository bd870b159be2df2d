"""Lognormal distributions that fit histograms of lengths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blis_sim.options.addition import added_up


@dataclass(frozen=True, slots=True)
class Fit:
    """A lognormal distribution of token counts."""

    mu: float
    sigma: float


def lognormal_fit(weights: Mapping[int, float]) -> Fit:
    """Mean and standard deviation of the logarithms of lengths, which must be above 0, by their weights."""
    total = added_up(weights.values())
    mu = added_up(weight * math.log(length) for length, weight in weights.items()) / total
    variance = added_up(weight * (math.log(length) - mu) ** 2 for length, weight in weights.items()) / total
    return Fit(mu, math.sqrt(variance))


def mean_fit(fits: Sequence[Fit]) -> Fit:
    """The average of the parameters."""
    return Fit(added_up(fit.mu for fit in fits) / len(fits), added_up(fit.sigma for fit in fits) / len(fits))
