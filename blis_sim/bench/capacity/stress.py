"""The winner of a plan under more than it was planned for: bursts, growth, the loss of an instance, slower steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_sim.bench.capacity.candidates import Counts
from blis_sim.bench.capacity.search import Trial, cheapest, in_rounds
from blis_sim.bench.capacity.simulations import Simulations
from blis_sim.bench.capacity.sureness import scaled
from blis_sim.bench.capacity.targets import Judgement, Targets

GROWTH = 1.3
BURST_CV = 4.0
_MOST_HEADROOM = 2.0
_HEADROOM_STEP = 0.02


@dataclass(frozen=True, slots=True)
class Stress:
    """One test of the winner: what was done to it, and the judgement; None with the reason where it cannot be done."""

    name: str
    judgement: Judgement | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """The counts that the winner's deployment needs when steps take another time than predicted; None: none suffice."""

    step_error: float
    trial: Trial | None


def stresses(sims: Simulations, winner: Trial, targets: Targets) -> list[Stress]:
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
        Stress(name, None, reason) if each is None else Stress(name, targets.judge(next(outcomes)))
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


def bounds(sims: Simulations, winner: Trial, targets: Targets, step_error: float, most_gpus: int) -> list[Bound]:
    """Search the winner's counts anew with steps that are shorter and longer than predicted by a share of their time.

    Steps that take s times as long are the same simulation on another clock: s times the rate, limits divided by s.
    """
    if "rate" not in winner.candidate.settings:
        return []
    found = []
    for factor in (1 - step_error, 1 + step_error):
        search = cheapest([scaled(winner.candidate, factor)], most_gpus)
        (trial,) = in_rounds([search], judge_with(sims, targets.tightened(factor)))
        found.append(Bound(factor - 1, trial))
    return found


def judge_with(sims: Simulations, targets: Targets) -> Callable[[Sequence[tuple[Any, Counts]]], list[Judgement]]:
    """Return the judge of a search: all simulations of a round at once, compared with the targets."""

    def judge(asked: Sequence[tuple[Any, Counts]]) -> list[Judgement]:
        settings = [candidate.settings_with(counts) for candidate, counts in asked]
        return [targets.judge(each) for each in sims.outcomes(settings)]

    return judge
