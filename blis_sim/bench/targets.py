"""Latency targets in the spelling of all searching commands, and the search of the highest rate that meets limits."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from blis_sim.options import option
from blis_sim.options.durations import duration_ms

# Targets for the latencies of a run, in the spelling of all commands that search for what meets them.

LATENCIES = ("ttft", "itl", "e2e")
PERCENTILES = ("p90", "p95", "p99")


def _target(latency: str, percentile: str) -> Any:
    text = f"Longest {latency} at the {percentile.removeprefix('p')}th percentile, such as 40ms or 1s."
    return option(None, text, metavar="DURATION", heading="Targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTargets:
    """Durations that percentiles of latencies may not exceed."""

    ttft_p90: str | None = _target("time to first token", "p90")
    ttft_p95: str | None = _target("time to first token", "p95")
    ttft_p99: str | None = _target("time to first token", "p99")
    itl_p90: str | None = _target("time between tokens", "p90")
    itl_p95: str | None = _target("time between tokens", "p95")
    itl_p99: str | None = _target("time between tokens", "p99")
    e2e_p90: str | None = _target("time of a request", "p90")
    e2e_p95: str | None = _target("time of a request", "p95")
    e2e_p99: str | None = _target("time of a request", "p99")

    @property
    def targets_ms(self) -> Mapping[str, float]:
        """The limits by the figure of a row that they hold for. Raises OptionError."""
        return {
            f"{latency}_{percentile}_ms": duration_ms(f"--{latency}-{percentile}", text)
            for latency in LATENCIES
            for percentile in PERCENTILES
            if (text := getattr(self, f"{latency}_{percentile}")) is not None
        }


# Search of the highest rate that meets limits, with few trials.

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
