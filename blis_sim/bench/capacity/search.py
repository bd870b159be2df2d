"""Search of the cheapest counts of instances that meet the targets, with few simulations.

A search is a generator that yields one simulation to run and receives the judgement. Searches of several shapes
advance in rounds of simulations, so the result does not depend on the number of processes.
"""

from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from blis_sim.bench.capacity.candidates import Candidate, Counts
from blis_sim.bench.capacity.simulations import SERVED, Judgement

_FIRST_GUESS = 1.3
"""The first counts that are tried, as a multiple of what perfectly filled steps need."""
_GROWTH = 1.5
_MOST_GROWTH = 10
"""Counts beyond so many times the first guess are not tried: more instances do not mend what is missed there."""
_SLOW_GAIN = 0.98
"""Share of a missed figure above which more instances of a pool do not help."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation: a candidate with counts of instances, and the judgement of the targets."""

    candidate: Candidate
    counts: Counts
    judgement: Judgement

    @property
    def cost_per_hour(self) -> float:
        """Dollars of all instances for an hour."""
        return self.candidate.cost_per_hour(self.counts)


TrialRequest: TypeAlias = tuple[Candidate, Counts]
Search: TypeAlias = Generator[TrialRequest, Judgement, Trial | None]


def cheapest(candidates: Sequence[Candidate], most_gpus: int, best: Trial | None = None) -> Search:
    """Search the candidates of one shape, and return the cheapest trial that meets the targets, None without one.

    `best` is a trial that results must beat. A candidate is tried only where the lower bound of its cost is below the
    cost of the best trial so far.
    """
    for candidate in sorted(candidates, key=lambda each: each.cost_per_hour(each.least_counts)):
        found = yield from _least_counts(candidate, most_gpus, best)
        best = found or best
    return best


def _least_counts(candidate: Candidate, most_gpus: int, best: Trial | None) -> Search:
    """Return the trial with the least cost of a candidate, None when it is not below that of `best`."""

    def is_allowed(counts: Counts) -> bool:
        is_cheaper = best is None or candidate.cost_per_hour(counts) < best.cost_per_hour - 1e-9
        return is_cheaper and candidate.num_gpus(counts) <= most_gpus

    start = tuple(max(1, ceil(_FIRST_GUESS * each)) for each in candidate.busy_instances)
    counts = _within(start, candidate.least_counts, is_allowed)
    if counts is None:
        return None
    found = yield from _grown(candidate, counts, is_allowed)
    if found is None:
        return None
    for pool in range(len(counts)):
        found = yield from _shrunk(found, pool)
    return found


def _within(start: Counts, least: Counts, is_allowed: Callable[[Counts], bool]) -> Counts | None:
    """Return the largest counts between `least` and `start` that are allowed, None when those of `least` are not."""
    if is_allowed(start):
        return start
    if not is_allowed(least):
        return None
    good, bad = 0, 1 << 10  # shares of the way from least to start, in 1024ths

    def between(share: int) -> Counts:
        return tuple(low + (high - low) * share // (1 << 10) for low, high in zip(least, start, strict=True))

    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if is_allowed(between(middle)) else (good, middle)
    return between(good)


def _grown(candidate: Candidate, start: Counts, is_allowed: Callable[[Counts], bool]) -> Search:
    """Return the first trial that meets the targets while the pools that are at fault grow."""
    counts, grows_all = start, len(start) == 1
    judgement = yield candidate, counts
    while not judgement.is_met:
        faulty = range(len(counts)) if grows_all else _pools_at_fault(judgement)
        larger = _larger(counts, start, faulty, is_allowed)
        if larger is None:
            return None
        before, counts = judgement, larger
        judgement = yield candidate, counts
        gained = judgement.load < _SLOW_GAIN * before.load or before.worst == SERVED
        if not gained and grows_all:
            return None
        grows_all = len(start) == 1 or (not gained and judgement.worst == before.worst)
    return Trial(candidate, counts, judgement)


def _larger(
    counts: Counts, start: Counts, faulty: Container[int], is_allowed: Callable[[Counts], bool]
) -> Counts | None:
    """Return counts with more instances of some pools, half as many again or one where no more are allowed."""
    most = [_MOST_GROWTH * first for first in start]
    for grown in ([ceil(_GROWTH * n) for n in counts], [n + 1 for n in counts]):
        larger = tuple(min(grown[pool], most[pool]) if pool in faulty else n for pool, n in enumerate(counts))
        if larger != counts and is_allowed(larger):
            return larger
    return None


def _pools_at_fault(judgement: Judgement) -> Container[int]:
    """Return the pools whose instances are too few: prefill for the first token, decode for those that follow."""
    if judgement.worst.startswith("ttft"):
        return (0,)
    return (1,) if judgement.worst.startswith("itl") else (0, 1)


def _shrunk(start: Trial, pool: int) -> Generator[TrialRequest, Judgement, Trial]:
    """Return the trial with the fewest instances in one pool that meets the targets, by halved intervals."""
    found = start
    bad = start.candidate.least_counts[pool] - 1
    while found.counts[pool] - bad > 1:
        middle = (found.counts[pool] + bad) // 2
        counts = tuple(middle if each == pool else count for each, count in enumerate(found.counts))
        judgement = yield start.candidate, counts
        if judgement.is_met:
            found = Trial(start.candidate, counts, judgement)
        else:
            bad = middle
    return found


def in_rounds(
    searches: Sequence[Search], judge: Callable[[Sequence[TrialRequest]], Sequence[Judgement]]
) -> list[Trial | None]:
    """Advance all searches side by side, with one call of `judge` for each round, and return their results."""
    results: list[Trial | None] = [None] * len(searches)
    requested: dict[int, TrialRequest] = {}

    def advance(number: int, judgement: Judgement | None) -> None:
        try:
            search = searches[number]
            requested[number] = next(search) if judgement is None else search.send(judgement)
        except StopIteration as end:
            requested.pop(number, None)
            results[number] = end.value

    for number in range(len(searches)):
        advance(number, None)
    while requested:
        numbers = list(requested)
        for number, judgement in zip(numbers, judge([requested[each] for each in numbers]), strict=True):
            advance(number, judgement)
    return results
