"""How many tokens: the distributions of prompt, reply and item lengths.

Rules and rounding are those of BLIS (sim/workload/distribution.go): whole numbers of at least 1, except for empirical
ones and for a gaussian whose bounds coincide.
"""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.options.limits import MOST_TOKENS
from traces.workload.params import Params
from traces.workload.spec import Distribution

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_LONGEST = float(MOST_TOKENS)


def sample(distribution: Distribution, rng: np.random.Generator, count: int) -> Ints:
    """Draw `count` lengths. A longer draw from the same stream begins with the same lengths."""
    return _SAMPLERS[distribution.type](distribution.params, rng, count)


def _gaussian(params: Params, rng: np.random.Generator, count: int) -> Ints:
    low, high = params["min"], params["max"]
    if low == high:
        return np.full(count, int(low))
    drawn = rng.normal(params["mean"], params["std_dev"], count)
    # In this order the maximum wins where the bounds are swapped.
    return _whole(np.minimum(np.maximum(drawn, low), high))


def _exponential(params: Params, rng: np.random.Generator, count: int) -> Ints:
    return _bounded(rng.exponential(params["mean"], count), params)


def _lognormal(params: Params, rng: np.random.Generator, count: int) -> Ints:
    with np.errstate(over="ignore"):
        return _bounded(np.exp(params["mu"] + params["sigma"] * rng.standard_normal(count)), params)


def _pareto_lognormal(params: Params, rng: np.random.Generator, count: int) -> Ints:
    mixing, tail, body = rng.spawn(3)
    with np.errstate(over="ignore", divide="ignore"):
        # 1 - random() is in (0, 1].
        pareto = params["xm"] / (1 - tail.random(count)) ** (1 / params["alpha"])
        lognormal = np.exp(params["mu"] + params["sigma"] * body.standard_normal(count))
    drawn = np.where(mixing.random(count) < params["mix_weight"], pareto, lognormal)
    return _whole(np.where(np.isfinite(drawn), drawn, 1))


def _constant(params: Params, rng: np.random.Generator, count: int) -> Ints:
    return np.full(count, max(1, int(params["value"])))


def _empirical(params: Params, rng: np.random.Generator, count: int) -> Ints:
    weights = {int(tokens): weight for tokens, weight in params.items() if weight > 0}
    tokens = np.array(sorted(weights), np.int64)
    cumulative = np.cumsum([weights[length] for length in sorted(weights)])
    place = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    lengths: Ints = tokens[np.minimum(place, len(tokens) - 1)]
    return lengths


def _bounded(drawn: Floats, params: Params) -> Ints:
    """Rounded, then kept within min and max, of which 0 is none."""
    rounded = np.floor(drawn + 0.5)
    low, high = params.get("min", 0), params.get("max", 0)
    if low:
        rounded = np.maximum(rounded, math.trunc(low))
    if high:
        rounded = np.minimum(rounded, math.trunc(high))
    return _whole(rounded)


def _whole(drawn: Floats) -> Ints:
    """Rounded half up, at least 1."""
    return np.floor(np.clip(drawn, 1, _LONGEST) + 0.5).astype(np.int64)


_SAMPLERS: Mapping[str, Callable[[Params, np.random.Generator, int], Ints]] = {
    "gaussian": _gaussian,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "pareto_lognormal": _pareto_lognormal,
    "constant": _constant,
    "empirical": _empirical,
}
