"""One combination of engine settings: its search, and the best that it can do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_sim.bench.points.plan import Point
from blis_sim.bench.points.simulate import Job, Outcome, compute
from blis_sim.bench.rate_search import Trial, Verdict, search_rate

AT_ONCE_RATE = 1e6
"""Requests per second at which all of them are there before any is served."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchJob:
    """A combination to try, and what its figures must keep to."""

    point: Point
    command: str
    limits_ms: Mapping[str, float]
    min_attainment: float | None
    tolerance: float


@dataclass(frozen=True, slots=True)
class Setup:
    """A combination with all of its tries."""

    point: Point
    trials: Sequence[Trial[Outcome]]

    @property
    def best(self) -> Trial[Outcome] | None:
        """The good try that served most requests per second; None without a good one."""
        good = [trial for trial in self.trials if trial.is_good]
        return max(good, key=lambda trial: requests_per_s(trial.found), default=None)

    @property
    def error(self) -> str:
        """Why it cannot be simulated, at the first rate at which it cannot; empty if it can."""
        return next((trial.found.error for trial in self.trials if trial.found.error), "")

    @property
    def is_unexpected(self) -> bool:
        """Whether its settings do not explain why."""
        return any(trial.found.is_unexpected for trial in self.trials)


def search(job: SearchJob) -> Setup:
    """Find the highest rate for a combination."""

    def attempt(rate: float | None) -> Outcome:
        settings: dict[str, Any] = {**job.point.settings, "rate": AT_ONCE_RATE if rate is None else rate}
        return compute(Job("", job.command, settings))

    def is_good(outcome: Outcome) -> bool:
        figures = outcome.figures
        if outcome.error or not figures["completed_requests"]:
            return False
        if figures["completed_requests"] != figures["injected_requests"] or figures["rejected_requests"]:
            return False
        attainment = figures["slo_attainment"]
        if job.min_attainment is not None and (attainment or 0) < job.min_attainment:
            return False
        return all((figures[name] or 0) <= limit_ms for name, limit_ms in job.limits_ms.items())

    def judge(outcome: Outcome) -> Verdict:
        return Verdict(is_good(outcome), requests_per_s(outcome))

    return Setup(job.point, search_rate(attempt, judge, job.tolerance))


def requests_per_s(outcome: Outcome) -> float:
    """What was served; 0 where nothing was computed."""
    return outcome.figures.get("responses_per_sec") or 0.0
