"""The search of the highest rate that meets limits, with few trials."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")

_LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a trial: whether it met the limits, and the requests served per second."""

    is_good: bool
    served_per_s: float


@dataclass(frozen=True, slots=True)
class Trial(Generic[Found]):
    """One trial: the rate in requests per second, None for all requests at once, and its result."""

    rate: float | None
    found: Found
    is_good: bool


def rates_to_try(tolerance: float) -> Generator[float | None, Verdict, None]:
    """Yield the rates to try, in requests per second, each after the verdict on the rate before.

    The first trial is None: all requests at once. Where that trial misses the limits, rates up to its throughput
    follow, by bisection down to `tolerance`, a share of the rate. Rates above a bad rate are taken to be bad, and no
    rate is below a thousandth of the throughput.
    """
    verdict = yield None
    served = verdict.served_per_s
    if verdict.is_good or served <= 0:
        return
    verdict = yield served
    if verdict.is_good:
        return
    good, bad = 0.0, served
    while bad - good > tolerance * bad and bad > _LEAST_SHARE * served:
        middle = (good + bad) / 2
        verdict = yield middle
        if verdict.is_good:
            good = middle
        else:
            bad = middle


def search_rate(
    attempt: Callable[[float | None], Found], judge: Callable[[Found], Verdict], tolerance: float
) -> list[Trial[Found]]:
    """Run trials until the highest good rate is found, and return all of them."""
    trials: list[Trial[Found]] = []
    rates = rates_to_try(tolerance)
    rate = next(rates)
    while True:
        found = attempt(rate)
        verdict = judge(found)
        trials.append(Trial(rate, found, verdict.is_good))
        try:
            rate = rates.send(verdict)
        except StopIteration:
            return trials
