"""The search of the best rate for a combination of engine settings, and the answer on all combinations."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blis_sim.bench.points import FIGURES, TITLES, Figures, Job, Outcome, Point, compute
from blis_sim.bench.rate_search import Trial, Verdict, search_rate
from blis_sim.options.latency_targets import figure_words
from blis_sim.options.provenance import Provenance
from blis_sim.report.figures import Curve, Panel, Target, frontier_panels
from blis_sim.report.report import Report, Section, with_origin
from blis_sim.report.tables import TextTable, cell, duration
from traces.text_file import writing

AT_ONCE_RATE = 1e6
"""Requests per second at which all of them are there before any is served."""


_OF_NO_LOAD = dict.fromkeys(
    name for name in FIGURES if name.startswith(("steady_", "overload_", "load_arrived_")) or name == "is_steady"
)
"""Figures of requests that come over time. They mean nothing where all of them are there at once."""


@dataclass(frozen=True, slots=True, eq=False)
class SearchJob:
    """A combination to try, and the limits that its figures must meet."""

    point: Point
    command: str
    limits_ms: Mapping[str, float]
    min_attainment: float | None
    tolerance: float


@dataclass(frozen=True, slots=True)
class Combination:
    """A combination of settings with all of its trials."""

    point: Point
    trials: Sequence[Trial[Outcome]]

    @property
    def best(self) -> Trial[Outcome] | None:
        """The trial within the limits that served most requests per second; None without such a trial."""
        good = [trial for trial in self.trials if trial.is_good]
        return max(good, key=lambda trial: requests_per_s(trial.found), default=None)

    @property
    def outcome(self) -> Outcome:
        """The outcome whose notes hold for the combination: of the best trial, else of the last."""
        return (self.best or self.trials[-1]).found

    @property
    def error(self) -> str:
        """The first error of a trial; empty where all trials could be simulated."""
        return next((trial.found.error for trial in self.trials if trial.found.error), "")

    @property
    def is_unexpected(self) -> bool:
        """Whether a trial failed in a way that the settings do not explain."""
        return any(trial.found.is_unexpected for trial in self.trials)


def not_covered(point: Point, reason: str) -> Combination:
    """Return a combination that the latency model of all others cannot time."""
    return Combination(point, [Trial(None, Outcome(error=reason), is_good=False)])


def search(job: SearchJob) -> Combination:
    """Find the highest rate for a combination."""

    def attempt(rate: float | None) -> Outcome:
        settings: dict[str, Any] = {**job.point.settings, "rate": AT_ONCE_RATE if rate is None else rate}
        outcome = compute(Job("", job.command, settings))
        return replace(outcome, figures={**outcome.figures, **_OF_NO_LOAD}) if rate is None else outcome

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

    return Combination(job.point, search_rate(attempt, judge, job.tolerance))


def requests_per_s(outcome: Outcome) -> float:
    """The served load; 0 where nothing was computed."""
    return outcome.figures.get("responses_per_sec") or 0.0


_TITLES = {**TITLES, "e2e_p99_ms": "E2E p99 ms"}


def table_of(combinations: Sequence[Combination], varied: Sequence[str]) -> TextTable:
    """A line per combination with the highest rate it can keep up, the best one marked."""
    winner = best_of(combinations)
    rows = []
    for each in combinations:
        best = each.best
        known = {} if best is None else best.found.figures
        rows.append(
            {name: str(each.point.varied[name]) for name in varied}
            | {"rate": "" if best is None else rate_text(best.rate)}
            | {title: "" if best is None else cell(known.get(name)) for name, title in _TITLES.items()}
            | {"verdict": _why_not(each) if best is None else "best" if each is winner else ""}
        )
    return TextTable.of(rows, num_left_aligned=0, num_labels=len(varied))


def _why_not(combination: Combination) -> str:
    if combination.error.startswith("not covered"):
        return "not covered"
    return "cannot be simulated" if combination.error else "never within the limits"


def tune_report(
    combinations: Sequence[Combination],
    varied: Sequence[str],
    limits_ms: Mapping[str, float],
    origin: Provenance,
    step_times: str = "",
) -> Report:
    """Return the search as an answer. `step_times` states the latency model of all with its expected error."""

    def data() -> dict[str, Any]:
        return with_origin(
            {"step_times": step_times or None, "combinations": list(_rows(combinations, varied))}, origin
        )

    limits = f"limits: {', '.join(_limits(limits_ms).values())}" if limits_ms else ""
    return Report(
        title="Engine settings for",
        origin=lambda: origin,
        data=data,
        rows=lambda: _rows(combinations, varied),
        lead=lambda: [line for line in (step_times, limits) if line],
        sections=lambda: [Section("The highest rate of each combination", table_of(combinations, varied))],
        remarks=lambda: [best_line(combinations)],
        panels=lambda: _panels(combinations, limits_ms),
    )


def best_line(combinations: Sequence[Combination]) -> str:
    """Return a line that names the best combination, or states that no combination is within the limits."""
    winner = best_of(combinations)
    if winner is None or winner.best is None:
        return "nothing stays within the limits at any rate"
    served = winner.best.found.figures["responses_per_sec"]
    return f"best: {winner.point.label} at rate {rate_text(winner.best.rate)}, {served:.2f} requests/s"


def _rows(combinations: Sequence[Combination], varied: Sequence[str]) -> Iterator[dict[str, Any]]:
    winner = best_of(combinations)
    for combination in combinations:
        best = combination.best
        figures: Figures = {} if best is None else best.found.figures
        yield {
            **{name: combination.point.varied[name] for name in varied},
            "rate": None if best is None else "inf" if best.rate is None else best.rate,
            "is_best": combination is winner,
            **{name: figures.get(name) for name in FIGURES},
            "error": combination.error,
        }


def best_of(combinations: Sequence[Combination]) -> Combination | None:
    """The combination that serves most requests per second within the limits, the first one of equals."""
    able = [(combination, combination.best) for combination in combinations]
    found = [
        (combination, best.found.figures["responses_per_sec"] or 0) for combination, best in able if best is not None
    ]
    return max(found, key=lambda each: each[1])[0] if found else None


def rate_text(rate: float | None) -> str:
    """Return a rate as text; all requests at once are inf, as in vLLM's benchmarks."""
    return "inf" if rate is None else f"{rate:.2f}"


def write_trials(path: str, combinations: Sequence[Combination], varied: Sequence[str]) -> None:
    """Write every simulation of the search, in order. Raises TraceError."""
    with writing(Path(path)) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*varied, "rate", "within_limits", *FIGURES, "error"])
        for combination in combinations:
            settings = [combination.point.varied[name] for name in varied]
            for trial in combination.trials:
                figures: list[Any] = [trial.found.figures.get(name) for name in FIGURES]
                rate = "inf" if trial.rate is None else trial.rate
                rows.writerow([*settings, rate, str(trial.is_good).lower(), *figures, trial.found.error])


def _limits(limits_ms: Mapping[str, float]) -> dict[str, str]:
    """Return each limit in words by the figure of a row that it holds for, such as `TTFT p99 1 s`."""
    return {figure: f"{figure_words(figure)} {duration(limit_ms)}" for figure, limit_ms in limits_ms.items()}


def _panels(combinations: Sequence[Combination], limits_ms: Mapping[str, float]) -> list[Panel]:
    """Return p99 latencies against throughput, with the limits that hold for the 99th percentile."""
    words = _limits(limits_ms)
    targets = {
        f"{name}_ms": [Target(limits_ms[figure], f"limit of {words[figure]}")]
        for name in ("ttft", "itl")
        if (figure := f"{name}_p99_ms") in limits_ms
    }
    return frontier_panels([curve for curve in map(_curve, combinations) if curve.throughput], targets)


def _curve(combination: Combination) -> Curve:
    tries = [trial for trial in combination.trials if trial.found.figures.get("tokens_per_sec")]
    figures = [trial.found.figures for trial in tries]
    return Curve(
        name=combination.point.label,
        throughput=[each["tokens_per_sec"] or 0 for each in figures],
        ttft_ms=[each["ttft_p99_ms"] or 0 for each in figures],
        itl_ms=[each["itl_p99_ms"] or 0 for each in figures],
        labels=[f"{rate_text(trial.rate)}/s" if trial is combination.best else "" for trial in tries],
    )
