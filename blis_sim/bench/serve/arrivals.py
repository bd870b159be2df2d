"""When requests are due, as `vllm bench serve` decides it."""

from dataclasses import dataclass
from math import inf

import numpy as np


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that rises from the first request to the last, in requests per second."""

    strategy: str
    start_rps: float
    end_rps: float

    def rate(self, place: int, count: int) -> float:
        """The rate at one of `count` requests."""
        progress = place / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def arrivals_us(count: int, rate: float, burstiness: float, seed: int, ramp: Ramp | None = None) -> list[int]:
    """Instants from the start of the run, ascending, in microseconds; all 0 at an unlimited rate.

    Gaps are gamma distributed with shape `burstiness`, all equal where that is infinite. Without a ramp they are
    stretched so that the last request is due after exactly `count / rate` seconds.
    """
    if ramp is None and rate == inf:
        return [0] * count
    rates = np.array([rate if ramp is None else ramp.rate(place, count) for place in range(count)])
    means_s = 1 / np.maximum(rates, 1e-9)
    if ramp is not None and ramp.start_rps == 0:
        means_s[0] = 0.0  # a ramp from nothing would never begin
    if burstiness == inf:
        gaps_s = means_s
    else:
        gaps_s = np.random.default_rng([seed, 1]).gamma(burstiness, 1 / burstiness, count) * means_s
    instants_s = np.cumsum(gaps_s)
    if ramp is None and instants_s[-1] > 0:
        instants_s *= count / rate / instants_s[-1]
    return [round(float(at_s) * 1e6) for at_s in instants_s]
