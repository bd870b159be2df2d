"""The highest rate that is still good enough, found with as few tries as it takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")

_LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class Trial(Generic[Found]):
    """One try: the rate in requests per second, None for all at once, and what came of it."""

    rate: float | None
    found: Found
    is_good: bool


def search_rate(
    attempt: Callable[[float | None], Found],
    is_good: Callable[[Found], bool],
    throughput: Callable[[Found], float],
    tolerance: float,
) -> list[Trial[Found]]:
    """Tries, the first one with all requests at once.

    If that is not good, rates up to what it served per second, for no higher one can be kept up: halved intervals down
    to `tolerance`, a share of the rate. A rate is taken to be bad if a lower one is, and a thousandth is the lowest.
    """
    trials: list[Trial[Found]] = []

    def succeeds(rate: float | None) -> bool:
        found = attempt(rate)
        trials.append(Trial(rate, found, is_good(found)))
        return trials[-1].is_good

    if succeeds(None):
        return trials
    served = throughput(trials[0].found)
    if served <= 0:
        return trials
    if succeeds(served):
        return trials
    good, bad = 0.0, served
    while bad - good > tolerance * bad and bad > _LEAST_SHARE * served:
        middle = (good + bad) / 2
        if succeeds(middle):
            good = middle
        else:
            bad = middle
    return trials
