"""The tables of the folder `plots`: distributions and running sums, in the form in which Vidur writes them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Numbers = Floats | npt.NDArray[np.int64]

_FRACTIONS = np.linspace(0, 1, 101)
_ACCURACY = 0.001
"""Largest relative error of a quantile of the original."""
_LEAST = 1e-9
"""Values up to this one have no logarithm in the original."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One file of the folder, and its picture: shares of a sample up to a value, or values over batches or time."""

    name: str
    x_label: str
    y_label: str
    x: Numbers
    y: Numbers
    header: str = ""
    rows: Iterable[str] = ()
    """Empty where there is a picture alone."""
    is_histogram: bool = False
    """Whether `x` is a sample, to be counted in bins."""

    @property
    def has_shares(self) -> bool:
        """Whether `y` is the share of a sample up to `x`."""
        return self.y_label.startswith("share")


def shares_of_requests(name: str, label: str, numbers: Sequence[int], values: Floats) -> Curve:
    """Return the share of requests up to the value of each; `numbers` are theirs, in the order of their ends."""
    order = np.argsort(values, kind="stable")
    ascending, shares = values[order], np.arange(1, len(values) + 1) / max(len(values), 1)
    cells = zip(order.tolist(), ascending.tolist(), shares.tolist(), strict=True)
    rows = (f"{place},{numbers[place]},{value!r},{share!r}" for place, value, share in cells)
    return Curve(name, label, "share of requests", ascending, shares, f",Request Id,{name},cdf", rows)


def shares_of_batches(name: str, column: str, label: str, values: Numbers, *, is_original: bool) -> Curve:
    """Return the value below which each hundredth of a sample lies; the original's are off by up to a thousandth."""
    points = _sketched(values) if is_original else np.quantile(values, _FRACTIONS, method="inverted_cdf").astype(float)
    cells = zip(count(), _FRACTIONS.tolist(), points.tolist(), strict=False)
    rows = (f"{place},{share!r},{value!r}" for place, share, value in cells)
    return Curve(name, label, "share of batches", points, _FRACTIONS, f",cdf,{column}", rows)


def series(name: str, x_name: str, y_name: str, labels: tuple[str, str], x: Numbers, y: Numbers) -> Curve:
    """Return values by the number of a batch, or over time."""
    cells = zip(count(), x.tolist(), y.tolist(), strict=False)
    rows = (f"{place},{at!r},{value!r}" for place, at, value in cells)
    return Curve(name, *labels, x, y, f",{x_name},{y_name}", rows)


def _sketched(values: Numbers) -> Floats:
    """Return quantiles as a sketch has them that counts values in buckets whose bounds grow by a constant factor.

    Facts: the DDSketch of the package ddsketch.
    """
    gamma = (1 + _ACCURACY) / (1 - _ACCURACY)
    positive = values[values > _LEAST]
    num_zeros = len(values) - len(positive)
    keys, counts = np.unique(np.ceil(np.log(positive) / math.log(gamma) - 1e-12), return_counts=True)
    ranks = _FRACTIONS * (len(values) - 1) - num_zeros
    places = np.searchsorted(np.cumsum(counts), ranks, side="right")
    found = 2 / (1 + gamma) * gamma ** keys[np.minimum(places, len(keys) - 1)] if len(keys) else np.zeros(len(ranks))
    return np.where(ranks < 0, 0.0, found)
