"""From profiling tables to lookup tables: learned once, and kept by the content of what they were learned from."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import astuple
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.operators.profiles import Profiles, Samples
from blis_sim.engine.latency.operators.tables import COMPUTE_OPERATORS, Grid, Line, OperatorTables
from blis_sim.options.progress import progress_bar

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


TOKENS = (1, 2, 4, *range(8, 4097, 8))
KV_TOKENS = tuple(range(0, 4097, 64))
DECODES = tuple(range(1, 129))
CHUNKS = (1, *range(64, 4097, 64))
"""Vidur's grid of predictions, of which straight lines lead on."""
_VERSION = 1


def learned_tables(profiles: Profiles, method: str, cache: Path) -> tuple[OperatorTables, Line | None]:
    """Return the lookup tables of a deployment, and what the CPU takes over requests where that was measured.

    Those of a forest or a polynomial are kept in the folder `cache`. Raises EngineError.
    """
    if method == "interpolation":
        return _interpolated(profiles), _cpu_line(profiles)
    path = cache / f"{_digest(profiles, method)}.json"
    if path.is_file():
        return _restored(json.loads(path.read_text())), _cpu_line(profiles)
    tables = _predicted(profiles, method)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(_plain(tables)))
        part.replace(path)
    except OSError as error:
        raise EngineError(f"{path}: cannot be written, {error}") from None
    return tables, _cpu_line(profiles)


def grid_of(samples: Samples) -> Grid:
    """Return the grid through measurements with two features, each row monotone; its gaps follow its neighbours."""
    rows = sorted({int(row) for row, _ in samples.features})
    columns = sorted({int(column) for _, column in samples.features})
    sums, counts = np.zeros((len(rows), len(columns))), np.zeros((len(rows), len(columns)))
    row_of, column_of = ({value: place for place, value in enumerate(each)} for each in (rows, columns))
    for (row, column), time_ms in zip(samples.features, samples.times_ms, strict=True):
        cell = row_of[int(row)], column_of[int(column)]
        sums[cell] += time_ms
        counts[cell] += 1
    slope = 0.0
    at = np.array(columns, float)
    values = np.zeros_like(sums)
    for place, count in enumerate(counts):
        known = count > 0
        means = monotone(sums[place][known] / count[known], count[known])
        filled = np.interp(at, at[known], means)
        if known.sum() > 1:
            slope = max(0.0, (means[-1] - means[0]) / (at[known][-1] - at[known][0])) / rows[place]
        beyond, before = at > at[known][-1], at < at[known][0]
        filled[beyond] += slope * rows[place] * (at[beyond] - at[known][-1])
        filled[before] = np.maximum(filled[before] - slope * rows[place] * (at[known][0] - at[before]), 0.0)
        values[place] = filled
    return Grid(rows, columns, values.tolist())


def _interpolated(profiles: Profiles) -> OperatorTables:
    compute = {name: _line(profiles.compute.get(name)) for name in COMPUTE_OPERATORS}
    return OperatorTables(compute, grid_of(profiles.decode), grid_of(profiles.prefill))


def _line(samples: Samples | None) -> Line:
    if samples is None or not samples.times_ms:
        return Line([1], [0.0])
    places, values = line_points(samples)
    return Line(places, values)  # type: ignore[arg-type]  # tokens of a size in bytes need not be whole


def _predicted(profiles: Profiles, method: str) -> OperatorTables:
    """Learn all operators, with progress on a terminal: the largest tables take a forest seconds."""
    measured = {name: each for name in COMPUTE_OPERATORS if (each := profiles.compute.get(name)) and each.times_ms}
    contexts = np.array(KV_TOKENS, float)
    with progress_bar(f"learning operators ({method})", len(measured) + 2) as learned_one:

        def learn(features: Floats, times: Floats) -> Predict:
            predict = METHODS[method](features, times)
            if learned_one is not None:
                learned_one()
            return predict

        lines = {name: learn(*_arrays(samples)) for name, samples in measured.items()}
        decode = learn(*_arrays(profiles.decode))
        features, times = _arrays(profiles.prefill)
        # Vidur's features of a prompt: the tokens before it, and the square of its own.
        prefill = learn(np.stack([features[:, 1], features[:, 0] ** 2], axis=1), times)
    tokens = np.array(TOKENS, float)[:, None]
    compute = {
        name: Line(TOKENS, lines[name](tokens).tolist()) if name in lines else Line([1], [0.0])
        for name in COMPUTE_OPERATORS
    }
    decodes = [decode(np.stack([np.full_like(contexts, each), contexts], axis=1)).tolist() for each in DECODES]
    prompts = [prefill(np.stack([contexts, np.full_like(contexts, each**2)], axis=1)).tolist() for each in CHUNKS]
    return OperatorTables(compute, Grid(DECODES, KV_TOKENS, decodes), Grid(CHUNKS, KV_TOKENS, prompts))


def _cpu_line(profiles: Profiles) -> Line | None:
    """Return the sum of all operators of the CPU, at the batch sizes of the first one."""
    lines = [_line(samples) for samples in profiles.cpu.values() if samples.times_ms]
    if not lines:
        return None
    places = lines[0].places
    return Line(places, [sum(line.at(place) for line in lines) for place in places])


def _arrays(samples: Samples) -> tuple[Floats, Floats]:
    return np.array(samples.features, float), np.array(samples.times_ms, float)


def _digest(profiles: Profiles, method: str) -> str:
    content = json.dumps([_VERSION, method, astuple(profiles)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _plain(tables: OperatorTables) -> dict[str, Any]:
    grids = {name: getattr(tables, name) for name in ("decode", "prefill")}
    return {
        "compute": {name: [line.places, line.values] for name, line in tables.compute.items()},
        **{name: [grid.rows, grid.columns, grid.values] for name, grid in grids.items()},
    }


def _restored(content: dict[str, Any]) -> OperatorTables:
    compute = {name: Line(*points) for name, points in content["compute"].items()}
    return OperatorTables(compute, Grid(*content["decode"]), Grid(*content["prefill"]))
