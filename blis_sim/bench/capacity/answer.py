"""From the question of a plan to its answer: the cheapest trial of each GPU type and shape, and tests of the winner.

The winner is tested beyond the planned load: with bursts, growth, the loss of an instance and slower steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeAlias

from blis_sim.bench import BenchError
from blis_sim.bench.capacity.candidates import (
    Candidate,
    Candidates,
    Choices,
    Counts,
    MeanLoad,
    candidates_of,
    with_other_settings,
)
from blis_sim.bench.capacity.prices import Prices
from blis_sim.bench.capacity.search import Trial, cheapest, in_rounds
from blis_sim.bench.capacity.simulations import Judgement, Simulations, Targets
from blis_sim.bench.runner.commands import Simulation
from blis_sim.bench.runner.simulate import Outcome
from blis_sim.engine.latency.sureness import ErrorEstimate, sureness
from blis_sim.options import BlisError, options_from

__all__ = ["ErrorEstimate", "scaled", "sureness_of"]


def sureness_of(candidate: Candidate) -> ErrorEstimate:
    """Return the expected error of the step times behind a candidate."""
    return sureness(candidate.latency_model, candidate.notes)


def scaled(candidate: Candidate, factor: float) -> Candidate:
    """Return the candidate on a clock on which its steps take `factor` times as long: requests come so much faster."""
    return replace(
        candidate,
        settings={**candidate.settings, "rate": candidate.settings["rate"] * factor},
        busy_instances=_times(candidate.busy_instances, factor),
    )


def _times(values: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(each * factor for each in values)


GROWTH = 1.3
BURST_CV = 4.0
_MOST_HEADROOM = 2.0
_HEADROOM_STEP = 0.02


@dataclass(frozen=True, slots=True)
class StressTest:
    """One stress test of the winner with its judgement; None with the reason where the test is impossible."""

    name: str
    judgement: Judgement | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepErrorCase:
    """The counts that the winner needs when steps take another time than predicted; None where none suffice."""

    step_error: float
    trial: Trial | None


def stress_tests(sims: Simulations, winner: Trial, targets: Targets) -> list[StressTest]:
    """Simulate the winner in bursts, with more requests, and without one instance of each pool."""
    settings = winner.candidate.settings_with(winner.counts)
    asked: list[tuple[str, Mapping[str, Any] | None, str]] = []
    by_spec = "the rate is that of the workload"
    has_rate = "rate" in settings
    bursts = f"bursts (gamma gaps, coefficient of variation {BURST_CV:g})"
    more = {**settings, "rate": settings["rate"] * GROWTH} if has_rate else None
    asked.append((f"{GROWTH - 1:.0%} more requests", more, by_spec))
    asked.append((bursts, {**settings, "arrival": "gamma", "arrival_cv": BURST_CV} if has_rate else None, by_spec))
    for name, counts in _after_a_loss(winner):
        lost = winner.candidate.settings_with(counts) if min(counts) else None
        asked.append((name, lost, "no instance would be left"))
    outcomes = iter(sims.outcomes([each for _, each, _ in asked if each is not None]))
    return [
        StressTest(name, None, reason) if each is None else StressTest(name, targets.judge(next(outcomes)))
        for name, each, reason in asked
    ]


def _after_a_loss(winner: Trial) -> Iterator[tuple[str, Counts]]:
    names = ("one prefill instance lost", "one decode instance lost") if winner.candidate.is_split else None
    for pool in range(len(winner.counts)):
        counts = tuple(each - (number == pool) for number, each in enumerate(winner.counts))
        yield names[pool] if names else "one instance lost", counts


def highest_rate(sims: Simulations, winner: Trial, targets: Targets) -> float | None:
    """Return the highest rate at which the winner meets the targets, up to twice the planned; None without a rate."""
    settings = winner.candidate.settings_with(winner.counts)
    if "rate" not in settings:
        return None
    planned = settings["rate"]

    def is_met(factor: float) -> bool:
        return targets.judge(sims.outcomes([{**settings, "rate": planned * factor}])[0]).is_met

    good, bad = 1.0, _MOST_HEADROOM
    if is_met(bad):
        return float(planned * bad)
    while bad - good > _HEADROOM_STEP:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if is_met(middle) else (good, middle)
    return float(planned * good)


def step_error_cases(
    sims: Simulations, winner: Trial, targets: Targets, step_error: float, most_gpus: int
) -> list[StepErrorCase]:
    """Search the winner's counts anew with steps that are shorter and longer than predicted by a share of their time.

    Steps that take s times as long are the same simulation on another clock: s times the rate, limits divided by s.
    """
    if "rate" not in winner.candidate.settings:
        return []
    found = []
    for factor in (1 - step_error, 1 + step_error):
        search = cheapest([scaled(winner.candidate, factor)], most_gpus)
        (trial,) = in_rounds([search], judge_with(sims, targets.tightened(factor)))
        found.append(StepErrorCase(factor - 1, trial))
    return found


def judge_with(sims: Simulations, targets: Targets) -> Callable[[Sequence[tuple[Any, Counts]]], list[Judgement]]:
    """Return the judge of a search: all simulations of a round at once, compared with the targets."""

    def judge(asked: Sequence[tuple[Any, Counts]]) -> list[Judgement]:
        settings = [candidate.settings_with(counts) for candidate, counts in asked]
        return [targets.judge(each) for each in sims.outcomes(settings)]

    return judge


_PROBE_INSTANCES = 256

Cell: TypeAlias = tuple[str, str]
"""A GPU type and a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuery:
    """The inputs of a plan: the simulated command with settings that all candidates share, choices, prices, targets."""

    simulation: Simulation
    settings: Mapping[str, Any]
    choices: Choices
    prices: Prices
    targets: Targets
    most_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The cheapest trial of all, its results under other loads, and the expected error of its step times."""

    trial: Trial
    outcome: Outcome
    sureness: ErrorEstimate
    stress_tests: tuple[StressTest, ...]
    step_error_cases: tuple[StepErrorCase, ...]
    highest_rate_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The answer of a plan.

    `best` has the cheapest trial of each GPU type and shape with its outcome, None where none meets the targets, and
    `refused` has by GPU type the instances that were not tried and why. `winner` is None when no trial meets the
    targets.
    """

    model: str
    query: CapacityQuery
    load: MeanLoad
    best: Mapping[Cell, tuple[Trial, Outcome] | None]
    refused: Mapping[str, Mapping[str, str]]
    winner: Winner | None
    num_simulations: int


def answer(sims: Simulations, query: CapacityQuery) -> CapacityPlan:
    """Search all shapes, and test the cheapest deployment that was found. Raises BlisError."""
    query = replace(query, settings=_with_load_defaults(query))
    load = _load(sims, query)
    candidates = candidates_of(query.simulation, query.settings, query.choices, query.prices, load, query.targets)
    best = {key: _with_outcome(sims, trial) for key, trial in _best(sims, query, candidates).items()}
    found = [each for each in best.values() if each is not None]
    winner = _winner(sims, query, min(found, key=lambda each: each[0].cost_per_hour)) if found else None
    return CapacityPlan(
        model=str(query.settings["model"]),
        query=query,
        load=load,
        best=best,
        refused=candidates.refused,
        winner=winner,
        num_simulations=sims.num_computed,
    )


def _winner(sims: Simulations, query: CapacityQuery, best: tuple[Trial, Outcome]) -> Winner:
    trial, outcome = best
    sureness = sureness_of(trial.candidate)
    targets = query.targets
    return Winner(
        trial=trial,
        outcome=outcome,
        sureness=sureness,
        stress_tests=tuple(stress_tests(sims, trial, targets)),
        step_error_cases=tuple(step_error_cases(sims, trial, targets, sureness.step_error, query.most_gpus)),
        highest_rate_per_s=highest_rate(sims, trial, targets),
    )


def _with_outcome(sims: Simulations, trial: Trial | None) -> tuple[Trial, Outcome] | None:
    if trial is None:
        return None
    (outcome,) = sims.outcomes([trial.candidate.settings_with(trial.counts)])
    return trial, outcome


def _with_load_defaults(query: CapacityQuery) -> dict[str, Any]:
    """Return the settings with Poisson arrivals and a minute of requests as defaults."""
    settings = dict(query.settings)
    if query.simulation.name != "run" or settings.get("workload_spec") or settings.get("concurrency"):
        return settings
    rate = settings.setdefault("rate", 1.0)
    settings.setdefault("arrival", "poisson")
    settings.setdefault("num_requests", _needed_num_requests(rate))
    return settings


def _needed_num_requests(rate: float) -> int:
    """Return the requests of a simulation: a minute of them, within bounds that keep percentiles and time in hand."""
    return min(5000, max(1000, ceil(60 * rate)))


def _load(sims: Simulations, query: CapacityQuery) -> MeanLoad:
    """Return the mean load, from one simulation with plenty of instances. Raises BlisError where none completes."""
    settings = {**query.settings, "tp": max(query.choices.tps), "num_instances": _PROBE_INSTANCES}
    first: BlisError | None = None
    for gpu in query.choices.gpus:
        placed = {**settings, "hardware": gpu}
        try:
            options_from(query.simulation.options, **{**placed, "json": True})
        except BlisError as error:
            first = first or error
            continue
        (outcome,) = sims.outcomes([placed])
        if not outcome.error:
            return _mean_load(outcome, query)
        first = first or BenchError(outcome.error)
    raise first or BenchError("no GPU type to plan for")


def _mean_load(outcome: Outcome, query: CapacityQuery) -> MeanLoad:
    figures = outcome.figures
    completed = figures["completed_requests"] or 0
    if not completed:
        raise BenchError("the load of the plan has no request that completes")
    duration_s = figures["vllm_estimated_duration_s"] or 1.0
    new = 1 - (figures["cache_hit_rate"] or 0.0)
    return MeanLoad(
        rate_per_s=float(query.settings.get("rate") or completed / duration_s),
        prompt_tokens=new * (figures["total_input_tokens"] or 0) / completed,
        output_tokens=(figures["total_output_tokens"] or 0) / completed,
    )


def _best(sims: Simulations, query: CapacityQuery, candidates: Candidates) -> dict[Cell, Trial | None]:
    """Return the cheapest trial of each GPU type and shape: first of all candidates, then of variants of the best."""
    keys = list(dict.fromkeys((each.gpu, each.shape) for each in candidates.found))
    judge = judge_with(sims, query.targets)
    members = [[each for each in candidates.found if (each.gpu, each.shape) == key] for key in keys]
    found = in_rounds([cheapest(each, query.most_gpus) for each in members], judge)
    variants = [_variants(trial, query.settings) if trial is not None else [] for trial in found]
    refined = [cheapest(each, query.most_gpus, trial) for each, trial in zip(variants, found, strict=True)]
    return dict(zip(keys, in_rounds(refined, judge), strict=True))


def _variants(trial: Trial, settings: Mapping[str, Any]) -> list[Candidate]:
    """Return the candidate of a trial with another router and other limits of a step, where the user sets neither."""
    found = []
    if sum(trial.counts) > 1 and "routing_policy" not in settings:
        found.append(with_other_settings(trial.candidate, "least-loaded", routing_policy="least-loaded"))
    if "max_num_seqs" not in settings:
        found += [with_other_settings(trial.candidate, f"{each} seqs", max_num_seqs=each) for each in (128, 512)]
    return found
