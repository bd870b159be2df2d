"""Whether a server still does what is predicted of it: one comparison."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blis_sim.bench.watch.prediction import FIGURES, Interval, Stretch, predicted, stretch_of
from blis_sim.bench.watch.readings import E2E, OUTPUTS, PROMPTS, TTFT, Reading, between
from blis_sim.engine.deployment import Deployment

LEAST_REQUESTS = 20
"""With fewer ended requests nothing is said of the means."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One mean as the server shows it, beside its prediction. In seconds."""

    name: str
    measured_s: float
    interval: Interval

    @property
    def has_drifted(self) -> bool:
        """Whether the measured mean is outside of the interval."""
        return not self.interval.low_s <= self.measured_s <= self.interval.high_s

    @property
    def in_words(self) -> str:
        """The figure and its interval, in milliseconds."""
        low, high = self.interval.low_s * 1e3, self.interval.high_s * 1e3
        return f"{self.name} {self.measured_s * 1e3:,.2f} ({low:,.2f} to {high:,.2f})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last minutes of a server against their prediction. Without figures, `reason` says why."""

    at_s: float
    window_s: float = 0.0
    num_requests: int = 0
    mean_prompt_tokens: float = 0.0
    mean_output_tokens: float = 0.0
    figures: Sequence[Figure] = ()
    reason: str = ""
    answers: bool = True
    """Whether the server, or the Prometheus that scrapes it, was read."""

    @property
    def drifted(self) -> Sequence[Figure]:
        """The figures outside of their intervals."""
        return [each for each in self.figures if each.has_drifted]

    @property
    def lines(self) -> Iterator[str]:
        """The comparison in words: one line, and one more for each figure that has drifted."""
        if not self.figures:
            yield self.reason
            return
        figures = ", ".join(each.in_words for each in self.figures)
        yield f"{self.num_requests:,} requests in {self.window_s:,.0f} s, means in ms (predicted): {figures}"
        for each in self.drifted:
            error = each.measured_s / each.interval.mean_s - 1
            yield f"DRIFT: {each.name} is {error:+.1%} off its prediction of {each.interval.mean_s * 1e3:,.2f} ms"


def compared(
    readings: Sequence[Reading],
    deployment: Deployment,
    coefficients: str | None,
    *,
    window_s: float,
    num_draws: int,
    tolerance: float,
) -> Comparison:
    """Compare the last `window_s` of readings with their prediction."""
    stretch = stretch_of(readings, window_s)
    at_s = readings[-1].at_s if readings else 0.0
    if stretch is None:
        return Comparison(at_s, reason="too few readings to compare")
    begin = stretch.readings[stretch.start]
    observed = between(begin, readings[-1])
    num_requests = round(observed[E2E].count)
    if num_requests < LEAST_REQUESTS or observed[TTFT].count < 1 or observed[PROMPTS].count < 1:
        return Comparison(at_s, reason=f"too few requests to compare: {num_requests} have ended")
    intervals = predicted(stretch, deployment, coefficients, num_draws, tolerance)
    return Comparison(
        at_s,
        at_s - begin.at_s,
        num_requests,
        observed[PROMPTS].mean or 0.0,
        observed[OUTPUTS].mean or 0.0,
        list(_figures(stretch, intervals)),
    )


def _figures(stretch: Stretch, intervals: Mapping[str, Interval]) -> Iterator[Figure]:
    observed = between(stretch.readings[stretch.start], stretch.readings[-1])
    for name, interval in intervals.items():
        measured = observed[name].mean
        if measured is not None:
            yield Figure(FIGURES[name], measured, interval)
