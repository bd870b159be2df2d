"""From measurements of an operator to its time anywhere: monotone interpolation, a random forest, or a polynomial."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.operators.profiles import Samples

Floats: TypeAlias = npt.NDArray[np.float64]
Predict: TypeAlias = Callable[[Floats], Floats]
"""Takes rows of features and returns a time for each."""
Learn: TypeAlias = Callable[[Floats, Floats], Predict]
"""Takes rows of features and their times."""

_DEPTHS, _SPLITS, _TREES_OF_SEARCH, _TREES = (8, 16, 32), (2, 5, 10), 25, 250
"""Vidur's grid; the number of trees changes no choice of the other two."""
_FOLDS = 3
_DEGREES = (1, 2, 3, 4, 5)


def monotone(values: Floats, weights: Floats) -> Floats:
    """Return the closest values that never fall, by least squares: neighbours in the wrong order are averaged."""
    means: list[float] = []
    sums: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        sums.append(weight)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            weight_of_both = sums[-2] + sums[-1]
            means[-2] = (means[-2] * sums[-2] + means[-1] * sums[-1]) / weight_of_both
            sums[-2] = weight_of_both
            counts[-2] += counts[-1]
            del means[-1], sums[-1], counts[-1]
    return np.repeat(means, counts)


def line_points(samples: Samples) -> tuple[list[float], list[float]]:
    """Return the distinct places of an operator with one feature, and a time for each that never falls."""
    places = np.array([place for (place,) in samples.features])
    distinct, which, counts = np.unique(places, return_inverse=True, return_counts=True)
    times = np.array(samples.times_ms)
    means = np.bincount(which, times) / counts
    return distinct.tolist(), monotone(means, counts.astype(float)).tolist()


def learn_interpolation(features: Floats, times: Floats) -> Predict:
    """Learn straight lines between the places of one feature, which go on beyond both ends."""
    samples = Samples([(place,) for place in features[:, 0].tolist()], times.tolist())
    places, values = (np.array(each) for each in line_points(samples))

    def predict(rows: Floats) -> Floats:
        at = rows[:, 0]
        low = np.clip(np.searchsorted(places, at, side="right") - 1, 0, max(len(places) - 2, 0))
        if len(places) < 2:
            return np.full(len(at), values[0])
        share = (at - places[low]) / (places[low + 1] - places[low])
        found: Floats = np.maximum(values[low] + (values[low + 1] - values[low]) * share, 0.0)
        return found

    return predict


def learn_forest(features: Floats, times: Floats) -> Predict:
    """Learn Vidur's random forest; its depth and its least split are chosen by cross-validation. Raises EngineError."""
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        raise EngineError("--operators forest needs scikit-learn: pip install 'blis-mockserve[operators]'") from None

    def forest(depth: int, split: int, num_trees: int) -> Any:
        return RandomForestRegressor(
            n_estimators=num_trees, max_depth=depth, min_samples_split=split, random_state=0, n_jobs=1
        )

    def learn(setting: tuple[int, int]) -> Learn:
        depth, split = setting
        return lambda rows, values: forest(depth, split, _TREES_OF_SEARCH).fit(rows, values).predict

    best = _best(list(product(_DEPTHS, _SPLITS)), learn, features, times)
    depth, split = best
    predict: Predict = forest(depth, split, _TREES).fit(features, times).predict
    return predict


def learn_polynomial(features: Floats, times: Floats) -> Predict:
    """Learn a polynomial of all features up to the degree that cross-validation finds best; it is never below 0."""

    def learn(degree: int) -> Learn:
        return lambda rows, values: _polynomial(rows, values, degree)

    return _polynomial(features, times, _best(list(_DEGREES), learn, features, times))


METHODS: Mapping[str, Learn] = {
    "interpolation": learn_interpolation,
    "forest": learn_forest,
    "polynomial": learn_polynomial,
}
"""By name; interpolation is for operators with one feature, those with two lie on a grid."""


def relative_errors(predicted: Floats, times: Floats) -> Floats:
    """Return how far each prediction is off, as a share of the time; 0 for a time of 0 that is predicted."""
    off = np.abs(predicted - times)
    found: Floats = np.where(times > 0, off / np.where(times > 0, times, 1.0), np.where(off > 0, 1.0, 0.0))
    return found


def _best(settings: list[Any], learn: Callable[[Any], Learn], features: Floats, times: Floats) -> Any:
    """Return the setting with the smallest mean relative error on the folds that were left out."""
    fold = np.random.default_rng(0).permutation(len(times)) % _FOLDS
    errors = []
    for setting in settings:
        total = 0.0
        for each in range(_FOLDS):
            inside = fold != each
            if inside.all() or not inside.any():
                continue
            predicted = learn(setting)(features[inside], times[inside])(features[~inside])
            total += float(relative_errors(predicted, times[~inside]).sum())
        errors.append(total)
    return settings[int(np.argmin(errors))]


def _polynomial(features: Floats, times: Floats, degree: int) -> Predict:
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    powers = [each for each in product(range(degree + 1), repeat=features.shape[1]) if sum(each) <= degree]

    def terms(rows: Floats) -> Floats:
        scaled = rows / scale
        return np.stack([np.prod(scaled ** np.array(each), axis=1) for each in powers], axis=1)

    weights, *_ = np.linalg.lstsq(terms(features), times, rcond=None)
    return lambda rows: np.maximum(terms(rows) @ weights, 0.0)
