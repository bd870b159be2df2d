"""A sample of one group of requests: mean and percentiles to the last bit of the original's."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values with their mean, in the unit of the values; 0 for figures of an empty one."""

    mean: float
    ascending: Floats

    def __len__(self) -> int:
        return len(self.ascending)

    def percentile(self, percent: float) -> float:
        """Linear interpolation at rank percent/100*(n-1)."""
        if not len(self):
            return 0.0
        rank = percent / 100 * (len(self) - 1)
        lower = int(rank)
        low, high = self.ascending[lower], self.ascending[min(lower + 1, len(self) - 1)]
        return float(low + (rank - lower) * (high - low))


def distribution(values: npt.NDArray[np.int64] | Floats) -> Distribution:
    """The distribution of a sample. Its mean adds the values up in their order, which decides its last bit."""
    floats = values.astype(np.float64)
    mean = float(np.cumsum(floats)[-1]) / len(floats) if len(floats) else 0.0
    return Distribution(mean, np.sort(floats))
