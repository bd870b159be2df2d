"""The search of a plan: the cheapest counts of instances that meet the targets, and stress tests of the winner."""

import heapq
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from math import ceil, inf
from operator import ge, gt, le, lt, mul
from typing import Any, NamedTuple, TypeAlias, TypeVar

from blis_sim.bench import BenchError
from blis_sim.bench.candidates import (
    SERVED,
    Candidate,
    Candidates,
    Choices,
    Counts,
    Judgement,
    MeanLoad,
    PoolKind,
    Prices,
    Simulations,
    Targets,
    Wanted,
    candidates_of,
    variants,
    with_other_settings,
)
from blis_sim.bench.points import Outcome
from blis_sim.bench.simulation_commands import Simulation
from blis_sim.engine.cluster.build import Question, question_of
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.options import BlisError, options_from
from blis_sim.options.progress import Progress, no_progress
from traces.text_file import TraceError
from traces.workload.generate import rate_of
from traces.workload.presets import DEFAULT_RATE
from traces.workload.spec import SCENARIO_NAMES, Scenario, read_spec

# The one latency model of a plan, which times every candidate.


def question_of_plan(simulation: Simulation, settings: Mapping[str, Any], choices: Choices) -> Question | None:
    """Return the latency model of all candidates; None where the settings name one.

    Candidates as they were asked for decide. Those that spread experts or quantise weights in a second way are tried
    where the latency model covers them. They are reported where it does not.
    """
    asked_for = replace(
        choices,
        dps=choices.dps[:1],
        quantizations=choices.quantizations[:1],
        kv_cache_dtypes=choices.kv_cache_dtypes[:1],
        speculative_configs=choices.speculative_configs[:1],
        batched_tokens=choices.batched_tokens[:1],
    )
    found = question_of(list(_clusters(simulation, {"enable_expert_parallel": False, **settings}, asked_for)))
    return found or question_of(list(_clusters(simulation, settings, choices)))


def _clusters(simulation: Simulation, settings: Mapping[str, Any], choices: Choices) -> Iterator[ClusterOptions]:
    for gpu, tp, pp, dp in product(choices.gpus, choices.tps, choices.pps, choices.dps):
        for own in variants(settings, choices, {"hardware": gpu, "tp": tp, "pp": pp, "dp": dp}):
            try:
                options: ClusterOptions = simulation.options_with({**settings, **own}).cluster
            except BlisError:  # the plan reports the reason
                continue
            yield options


# Search of the cheapest counts of instances that meet the targets, with few simulations.
#
# A search is a generator that yields one simulation to run and receives the judgement. Searches share nothing, so the
# result does not depend on the number of processes.

_FIRST_GUESS = 1.1
"""The first counts that are tried, as a multiple of what evenly spread requests need."""
_MOST_MARGIN = 3.0
_GROWTH = 1.5
_MOST_GROWTH = 10
"""Counts beyond so many times the first guess are not tried: more instances do not mend what is missed there."""
_SLOW_GAIN = 0.98
"""Share of a missed figure and of its mean above which more instances of a pool do not help.

A percentile may stay where it is while the share of requests or gaps beyond the limit falls, and so does the mean.
"""
_ROOMY = 0.9
"""Share of the KV cache below which no decode instance keeps prompts waiting."""
_CENT = 0.01
"""Less is no gain."""


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


class TrialRequest(NamedTuple):
    """A simulation that a search asks for.

    With `by_longer` longer runs judge one that is too short to tell an overload.
    """

    candidate: Candidate
    counts: Counts
    by_longer: bool = False


Result = TypeVar("Result")
Asking: TypeAlias = Generator[TrialRequest, Judgement, Result]
Search: TypeAlias = Asking[Trial | None]
Judge: TypeAlias = Callable[[Sequence[TrialRequest]], Iterator[tuple[int, Judgement]]]
"""Takes requests, to which more are appended, and yields the place of each with its judgement when it has one."""


@dataclass(slots=True)
class Known:
    """The counts of instances of one kind in a pool that are enough, and those that are too few, in searches so far."""

    enough: dict[PoolKind, int] = field(default_factory=dict)
    too_few: dict[PoolKind, int] = field(default_factory=dict)

    def learn(self, candidate: Candidate, counts: Counts, judgement: Judgement) -> int | None:
        """Take in a judgement, and return the pool with too few instances, None where it may be either."""
        kinds = [candidate.kind_of(pool) for pool in range(len(counts))]
        if judgement.is_met:
            for kind, count in zip(kinds, counts, strict=True):
                self.enough[kind] = min(count, self.enough.get(kind, count))
            return None
        pool = self._at_fault(kinds, counts, judgement)
        if pool is not None:
            self.too_few[kinds[pool]] = max(counts[pool], self.too_few.get(kinds[pool], 0))
        return pool

    def _at_fault(self, kinds: Sequence[PoolKind], counts: Counts, judgement: Judgement) -> int | None:
        if len(counts) == 1:
            return 0
        missed = {name.split("_")[0] for name, load in judgement.loads.items() if load > 1}
        if "itl" in missed:  # the gaps between tokens are those of decode instances
            return 1
        if judgement.worst != SERVED and not judgement.worst.startswith("ttft"):
            return None
        is_enough = [count >= self.enough.get(kind, count + 1) for kind, count in zip(kinds, counts, strict=True)]
        if any(is_enough):
            return is_enough.index(False) if not all(is_enough) else None
        has_gaps = any(name.startswith("itl") for name in judgement.loads)
        has_room = judgement.use is not None and judgement.use.peak_kv_fraction < _ROOMY
        return 0 if has_gaps and has_room and judgement.worst != SERVED else None


def cheapest(
    candidates: Sequence[Candidate],
    most_gpus: int,
    best: Trial | None = None,
    on_settled: Callable[[], None] | None = None,
) -> Search:
    """Search the candidates of one shape, and return the cheapest trial that meets the targets, None without one.

    `best` is a trial that results must beat. Of what the candidates propose, the least expensive counts are tried next,
    as long as they can win. Fewer instances of the best come before them. `on_settled` is called for each candidate
    that cannot win any more.
    """
    known = Known()
    margins = _margins(best)
    waiting = [CountSearch(each, most_gpus, known) for each in candidates]
    while True:
        proposals = [(each, each.proposal(best, margins)) for each in waiting]
        live = [(each, counts) for each, counts in proposals if counts is not None]
        for _ in range(len(waiting) - len(live) if on_settled is not None else 0):
            on_settled()  # type: ignore[misc]
        if not live:
            return best
        waiting = [each for each, _ in live]
        # What the neighbours of the best show of its pools spares trials of other candidates.
        search, counts = min(
            live, key=lambda each: (each[0].found is not best, each[0].candidate.cost_per_hour(each[1]))
        )
        judgement = yield TrialRequest(search.candidate, counts)
        search.take(counts, judgement)
        if search.found is not None and (best is None or search.found.cost_per_hour < best.cost_per_hour - _CENT):
            best = search.found
            margins = _margins(best)


def _margins(best: Trial | None) -> tuple[float, ...]:
    """Return the multiples of the needed instances that a trial has; none without one."""
    return () if best is None else tuple(map(_margin, best.counts, _needs(best.candidate)))


def _margin(count: int, need: float) -> float:
    """Return the multiple of the need that an answer has, in the middle of what rounds up to it."""
    return min(_MOST_MARGIN, max(1.0, (count - 0.5) / need)) if count > 1 and need else _FIRST_GUESS


def _needs(candidate: Candidate) -> tuple[float, ...]:
    """Return the instances of each pool that a load of evenly spread requests keeps busy."""
    return (candidate.needed_instances,) if candidate.needed_instances else candidate.busy_instances


@dataclass(slots=True)
class _Region:
    """The counts that may still win: cheaper than the best, and not shown to be too few."""

    candidate: Candidate
    most_gpus: int
    least: list[int]
    """The fewest instances of each pool that are not shown to be too few."""
    below_cost: float | None = None
    failed: list[Counts] = field(default_factory=list)

    def has(self, counts: Counts) -> bool:
        """Whether counts may win."""
        candidate = self.candidate
        if self.below_cost is not None and candidate.cost_per_hour(counts) >= self.below_cost - _CENT:
            return False
        if candidate.num_gpus(counts) > self.most_gpus or any(map(lt, counts, self.least)):
            return False
        return not any(all(map(le, counts, bad)) for bad in self.failed)

    def nearest(self, wanted: Counts) -> Counts | None:
        """Return the counts that may win nearest to those that are wanted; None when no counts may win."""
        wanted = tuple(map(max, wanted, self.least))
        if self.has(wanted):
            return wanted
        return min(self._largest(), key=lambda counts: _distance(counts, wanted), default=None)

    def most_of_one(self) -> int:
        """Return the most instances that may win, of the only pool."""
        return max((counts[0] for counts in self._largest()), default=self.least[0])

    def _largest(self) -> Iterator[Counts]:
        """Yield counts that may win, with the most instances of the last pool for those of the pool before it."""
        *others, last = self.candidate.gpus_per_instance
        gpus = self.most_gpus
        if self.below_cost is not None:
            gpus = min(gpus, ceil(self.below_cost / self.candidate.price_per_gpu_hour))
        for first in product(*(range(low, gpus // own + 1) for low, own in zip(self.least, others, strict=False))):
            most = (gpus - sum(map(mul, first, others))) // last
            fitting = ((*first, count) for count in (most, most - 1) if self.has((*first, count)))
            yield from islice(fitting, 1)


def _distance(counts: Counts, wanted: Counts) -> float:
    return max(max(n / want, want / n) for n, want in zip(counts, wanted, strict=True))


def cheapest_counts(candidate: Candidate, most_gpus: int, first: Counts) -> Search:
    """Return the trial of a candidate with the least cost, None without one; counts around the `first` are tried."""
    search = CountSearch(candidate, most_gpus, Known(), first)
    while (counts := search.proposal(search.found, ())) is not None:
        judgement = yield TrialRequest(candidate, counts)
        search.take(counts, judgement)
    return search.found


class CountSearch:
    """The search for the counts of one candidate: more while a target is missed, then fewer of one pool after another.

    `found` is the cheapest trial of the candidate so far.
    """

    def __init__(self, candidate: Candidate, most_gpus: int, known: Known, first: Counts = ()) -> None:
        self.candidate = candidate
        self.found: Trial | None = None
        self._known = known
        self._kinds = [candidate.kind_of(pool) for pool in range(len(candidate.gpus_per_instance))]
        self._region = _Region(candidate, most_gpus, list(candidate.likely_counts))
        self._growth = _Growth(len(self._kinds))
        self._first = first
        self._wanted: Counts = first
        self._step = 1
        self._may_help = True

    def proposal(self, best: Trial | None, margins: Sequence[float]) -> Counts | None:
        """Return the counts to try next, None when no counts can be cheaper than `best` and meet the targets.

        `margins` are the multiples of the needed instances that a neighbour has.
        """
        if not self._may_help:
            return None
        region = self._region
        region.below_cost = None if best is None else best.cost_per_hour
        for pool, kind in enumerate(self._kinds):
            region.least[pool] = max(region.least[pool], self._known.too_few.get(kind, 0) + 1)
        wanted = self._wanted or self._guess(margins)
        if best is not None and self.found is None and len(wanted) == 1:  # one miss of the most that can win is enough
            wanted = (min(region.most_of_one(), ceil(_GROWTH * wanted[0])),)
        counts = region.nearest(wanted)
        most = (
            _MOST_GROWTH * max(each) for each in zip(self._guess(margins), self.candidate.likely_counts, strict=True)
        )
        return None if counts is None or any(map(gt, counts, most)) else counts

    def take(self, counts: Counts, judgement: Judgement) -> None:
        """Take in the judgement of counts that were tried."""
        pool = self._known.learn(self.candidate, counts, judgement)
        if judgement.is_met:
            self._step = 1 if self.found is None else 2 * self._step
            self.found = Trial(self.candidate, counts, judgement)
        else:
            self._step = 1
            self._region.failed.append(counts)
            if pool is not None:
                self._region.least[pool] = max(self._region.least[pool], counts[pool] + 1)
            self._may_help = self.found is not None or self._growth.helps(counts, judgement)
        if self.found is None:
            self._wanted = self._growth.next(counts, judgement)
        else:
            self._wanted = _smaller(self.found.counts, self._region.least, self._step)

    def _guess(self, margins: Sequence[float]) -> Counts:
        if self._first:
            return self._first
        needs = _needs(self.candidate)
        return tuple(
            max(1, ceil(m * need)) for m, need in zip(margins or (_FIRST_GUESS,) * len(needs), needs, strict=True)
        )


@dataclass(slots=True)
class _Growth:
    """Instances that are added while a target is missed: as many as the figure asks for, and more after each miss."""

    num_pools: int
    has_all: bool = False
    """Whether all pools grow, as those that seemed at fault did not help, or as there is one."""
    misses: int = 0
    before: tuple[Counts, Judgement] | None = None

    def helps(self, counts: Counts, judgement: Judgement) -> bool:
        """Take in a miss, and return whether more instances may help."""
        self.misses += 1
        if self.before is None:
            self.before = counts, judgement
            return True
        fewer, worse = self.before
        if not any(n >= _GROWTH * m for n, m in zip(counts, fewer, strict=True)):
            return True
        self.before = counts, judgement
        if worse.worst == SERVED or judgement.worst != worse.worst or judgement.load < _SLOW_GAIN * worse.load:
            return True
        if judgement.mean_ms < _SLOW_GAIN * worse.mean_ms:
            return True
        may_help = not self.has_all and self.num_pools > 1
        self.has_all = True
        return may_help

    def next(self, counts: Counts, judgement: Judgement) -> Counts:
        """Return the counts to try after a miss."""
        factor = min(_GROWTH, judgement.load) ** self.misses
        pools = range(self.num_pools) if self.has_all or self.num_pools == 1 else _pools_at_fault(judgement)
        return tuple(
            max(n + 1, ceil(min(_GROWTH, factor) * n)) if pool in pools else n for pool, n in enumerate(counts)
        )


def _pools_at_fault(judgement: Judgement) -> Sequence[int]:
    """Return the pools whose instances are too few: prefill for the first token, decode for those that follow."""
    if judgement.worst.startswith("ttft"):
        return (0,)
    return (1,) if judgement.worst.startswith("itl") else (0, 1)


def _smaller(counts: Counts, least: Sequence[int], step: int) -> Counts:
    """Return counts with fewer instances of the first pool that can have fewer."""
    for pool, count in enumerate(counts):
        if count > least[pool]:
            fewer = max((count + least[pool]) // 2, count - step) if step > 1 else count - 1
            return tuple(fewer if each == pool else n for each, n in enumerate(counts))
    return counts


def every_count(candidates: Sequence[Candidate], most_gpus: int) -> Search:
    """Try all counts of all candidates that physics allows, in the order of their costs, up to the first that does."""
    waiting: list[tuple[float, int, Counts]] = []
    limits = [tuple(_MOST_GROWTH * n for n in each.least_counts) for each in candidates]
    seen: set[tuple[int, Counts]] = set()

    def add(number: int, counts: Counts) -> None:
        is_within = all(n <= most for n, most in zip(counts, limits[number], strict=True))
        if (number, counts) in seen or not is_within or candidates[number].num_gpus(counts) > most_gpus:
            return
        seen.add((number, counts))
        heapq.heappush(waiting, (candidates[number].cost_per_hour(counts), number, counts))

    for number, candidate in enumerate(candidates):
        add(number, candidate.least_counts)
    while waiting:
        _, number, counts = heapq.heappop(waiting)
        judgement = yield TrialRequest(candidates[number], counts)
        if judgement.is_met:
            return Trial(candidates[number], counts, judgement)
        for pool in range(len(counts)):
            add(number, tuple(n + (each == pool) for each, n in enumerate(counts)))
    return None


def confirmed(found: Trial | None, search: Callable[[], Search]) -> Search:
    """Return an answer of a search as longer runs judge it; where they find an overload, the answer by longer runs.

    They take most of the time, and most trials are no answer. Where they find an overload, they judge all trials.
    """
    if found is None or not found.judgement.is_open:
        return found
    judged = yield from by_longer(_once(found.candidate, found.counts))
    return judged if judged.judgement.is_met else (yield from by_longer(search()))


def by_longer(search: Asking[Result]) -> Asking[Result]:
    """Return a search with longer runs of all trials that are too short to tell an overload."""
    try:
        request = next(search)
        while True:
            judgement = yield request._replace(by_longer=True)
            request = search.send(judgement)
    except StopIteration as end:
        found: Result = end.value
        return found


def side_by_side(searches: Sequence[Asking[Result]], judge: Judge) -> list[Result]:
    """Advance all searches, each as soon as it has what it asked for, and return their results."""
    results: dict[int, Result] = {}
    asked: list[TrialRequest] = []
    owners: list[int] = []

    def advance(number: int, judgement: Judgement | None) -> None:
        try:
            search = searches[number]
            asked.append(next(search) if judgement is None else search.send(judgement))
            owners.append(number)
        except StopIteration as end:
            results[number] = end.value

    for number in range(len(searches)):
        advance(number, None)
    for place, judgement in judge(asked):
        advance(owners[place], judgement)
    return [results[number] for number in range(len(searches))]


# Tests of a plan's winner beyond the planned load: bursts, growth, the loss of an instance, and slower steps.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The cheapest trial of all, and its results under other loads and with other step times."""

    trial: Trial
    outcome: Outcome
    stress_tests: tuple[StressTest, ...] = ()
    step_error_cases: tuple[StepErrorCase, ...] = ()
    highest_rate_per_s: float | None = None


def untested(sims: Simulations, trial: Trial) -> Winner:
    """Return a winner whose other loads were not tried."""
    return Winner(trial=trial, outcome=outcome_of(sims, trial))


def outcome_of(sims: Simulations, trial: Trial) -> Outcome:
    """Return the outcome of a trial, whose simulation is known."""
    return sims.outcome(wanted(TrialRequest(trial.candidate, trial.counts, not trial.judgement.is_open)))


def stressed(
    sims: Simulations, trial: Trial, targets: Targets, most_gpus: int, on_trial: Callable[[], None] | None = None
) -> Winner | None:
    """Return the winner with the results of all tests; None where longer runs find that it is overloaded.

    `on_trial` is called after each simulation. Runs of the given length decide first, side by side. Longer runs judge
    the found trials that no other implies, since a lower rate cannot be an overload where a higher one is none. They
    judge further trials where they find an overload.
    """
    settings, step_error = trial.candidate.settings, trial.candidate.sureness.step_error
    judge = judge_with(sims, targets, on_trial)
    has_one_clock = "rate" in settings and not settings.get("workload_spec")  # whose pauses are on no other clock
    scales = (1 - step_error, 1 + step_error) if has_one_clock else ()
    searches: list[Callable[[], Search]] = [partial(highest_rate, trial)]
    searches += [partial(step_error_search, trial, scale, most_gpus) for scale in scales]
    stresses = list(_stresses(trial))
    searches += [partial(_once, each.candidate, each.counts) for _, each, _ in stresses if each is not None]
    found = side_by_side([each() for each in searches], judge)
    longer = [by_longer(_once(each.candidate, each.counts)) for each in _implied_by_none([trial, *found])]
    known = side_by_side(longer, judge)
    if trial.judgement.is_open and not _is_implied(trial, known):
        (confirmation,) = side_by_side([by_longer(_once(trial.candidate, trial.counts))], judge)
        if not confirmation.judgement.is_met:
            return None
        trial = confirmation
    known.append(trial)
    checks = [
        _as_found(each) if each is not None and _is_implied(each, known) else confirmed(each, search)
        for each, search in zip(found, searches, strict=True)
    ]
    rate, *found = side_by_side(checks, judge)
    judgements = iter(each.judgement if each is not None else None for each in found[len(scales) :])
    return replace(
        untested(sims, trial),
        stress_tests=tuple(
            StressTest(name, None if each is None else next(judgements), reason) for name, each, reason in stresses
        ),
        step_error_cases=tuple(
            StepErrorCase(scale - 1, each) for scale, each in zip(scales, found[: len(scales)], strict=True)
        ),
        highest_rate_per_s=None if rate is None else float(rate.candidate.settings["rate"]),
    )


def _implied_by_none(trials: Sequence[Trial | None]) -> list[Trial]:
    """Return the open trials that meet the targets and that no other of them implies, one of equal ones."""
    found: list[Trial] = []
    for each in trials:
        if each is None or not (each.judgement.is_open and each.judgement.is_met) or _is_implied(each, found):
            continue
        found = [*(other for other in found if not _is_implied(other, [each])), each]
    return found


def _stresses(winner: Trial) -> Iterator[tuple[str, TrialRequest | None, str]]:
    """Yield each test by name, with what is simulated, None where its reason makes it impossible."""
    candidate, settings = winner.candidate, winner.candidate.settings
    more = _with_more(settings, GROWTH)
    has_gaps = "rate" in settings and not settings.get("workload_spec")
    burst = {**settings, "arrival": "gamma", "arrival_cv": BURST_CV} if has_gaps else None
    loads = (
        (f"{GROWTH - 1:.0%} more requests", more, "requests come when replies do, at no rate"),
        (
            f"bursts (gamma gaps, coefficient of variation {BURST_CV:g})",
            burst,
            "the gaps between requests are those of the workload",
        ),
    )
    for name, load, reason in loads:
        request = None if load is None else TrialRequest(replace(candidate, settings=load), winner.counts)
        yield name, request, reason
    for name, counts in _after_a_loss(winner):
        yield name, TrialRequest(candidate, counts) if min(counts) else None, "no instance would be left"


def _with_more(settings: Mapping[str, Any], factor: float) -> dict[str, Any] | None:
    """Return settings with so many times the requests per second; None for a load without a rate."""
    if "trace" in settings or "trace_header" in settings:
        return {**settings, "speedup": settings.get("speedup", 1.0) * factor}
    return {**settings, "rate": settings["rate"] * factor} if "rate" in settings else None


def _after_a_loss(winner: Trial) -> Iterator[tuple[str, Counts]]:
    names = ("one prefill instance lost", "one decode instance lost") if winner.candidate.is_split else None
    for pool in range(len(winner.counts)):
        counts = tuple(each - (number == pool) for number, each in enumerate(winner.counts))
        yield names[pool] if names else "one instance lost", counts


def _once(candidate: Candidate, counts: Counts) -> Asking[Trial]:
    """Return the trial of a candidate with these counts, whether it meets the targets or not."""
    return Trial(candidate, counts, (yield TrialRequest(candidate, counts)))


def highest_rate(winner: Trial) -> Search:
    """Find the highest rate at which the winner meets the targets, up to twice the planned; None without a rate.

    Tried first is the growth of the stress tests, whose simulation is known.
    """
    candidate, counts = winner.candidate, winner.counts
    if "rate" not in candidate.settings:
        return None
    planned = candidate.settings["rate"]
    best, good, bad, factor = winner, 1.0, inf, GROWTH
    while True:
        more = replace(candidate, settings={**candidate.settings, "rate": planned * factor})
        judgement = yield TrialRequest(more, counts)
        if judgement.is_met:
            best, good = Trial(more, counts, judgement), factor
        else:
            bad = factor
        if good >= _MOST_HEADROOM or bad - good <= _HEADROOM_STEP:
            return best
        factor = (good + bad) / 2 if bad < inf else _MOST_HEADROOM


def step_error_search(winner: Trial, factor: float, most_gpus: int) -> Search:
    """Search the winner's counts anew with steps that take `factor` times as long as predicted.

    Such steps are the same simulation on another clock: `factor` times the rate, limits divided by it.
    """
    first = tuple(max(1, ceil(factor * n)) for n in winner.counts)
    return (yield from cheapest_counts(scaled(winner.candidate, factor), most_gpus, first))


def scaled(candidate: Candidate, factor: float) -> Candidate:
    """Return the candidate with steps that take `factor` times as long."""
    return replace(
        candidate,
        step_scale=factor,
        busy_instances=tuple(each * factor for each in candidate.busy_instances),
        # Shorter steps allow larger batches, so less than this share of the instances may suffice.
        needed_instances=candidate.needed_instances * factor if factor > 1 else 0.0,
    )


def _is_implied(found: Trial, known: Sequence[Trial]) -> bool:
    """Whether one of the trials that longer runs judged has no more instances, and requests that come as fast."""
    return found.judgement.is_met and any(
        each.judgement.is_met
        and _load_of(found)[0] == _load_of(each)[0]
        and _load_of(found)[1] <= _load_of(each)[1]
        and all(map(ge, found.counts, each.counts))
        for each in known
    )


def _load_of(trial: Trial) -> tuple[dict[str, Any], float]:
    """Return the settings of a trial but for its rate and counts, and the rate as it is simulated."""
    settings = dict(trial.candidate.settings)
    return settings, settings.pop("rate", 0.0) * trial.candidate.step_scale


def _as_found(trial: Trial) -> Search:
    """Return a trial as it is, by a search that asks for nothing."""
    yield from ()
    return trial


def judge_with(sims: Simulations, targets: Targets, on_trial: Callable[[], None] | None = None) -> Judge:
    """Return the judge of searches, which compares simulations with the targets. `on_trial` is called after each."""

    def judge(asked: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        for place, outcome in sims.outcomes(asked, wanted):
            if on_trial is not None:
                on_trial()
            yield (
                place,
                targets.for_server(asked[place].candidate.sureness, outcome)
                .tightened(asked[place].candidate.step_scale)
                .judge(outcome),
            )

    return judge


def wanted(request: TrialRequest) -> Wanted:
    """Return the simulation that a search asks for."""
    return Wanted(request.candidate.settings_with(request.counts), request.by_longer)


# From the question of a plan to its answer: the cheapest trial of each GPU type and shape, and tests of the winner.

_PROBE_INSTANCES = 256
_TEST_STEPS = 16
"""Simulations of the winner, as progress counts them."""
_MOST_RISE = 2
"""Factor up to which more requests run at once on each of fewer instances."""

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
    is_exhaustive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """The answer of a plan.

    `best` has the cheapest trial of each GPU type and shape with its outcome, None where none meets the targets.
    `refused` has by GPU type the instances that were not tried and why. `winner` is None when no trial meets the
    targets.
    """

    model: str
    query: CapacityQuery
    step_times: str
    """The latency model of all candidates with its expected error; empty where the settings name one."""
    load: MeanLoad
    best: Mapping[Cell, tuple[Trial, Outcome] | None]
    refused: Mapping[str, Mapping[str, str]]
    winner: Winner | None
    num_simulations: int
    notes: Sequence[str] = ()
    """Notes of the winner's run, else of the load alone, on its requests and settings."""
    is_interrupted: bool = False
    """Whether Ctrl-C ended the search, so that cheaper deployments may exist."""


def answer(sims: Simulations, query: CapacityQuery, progress: Progress = no_progress) -> CapacityPlan:
    """Search all shapes, and test the cheapest deployment that was found.

    Ctrl-C ends the search with the best so far. Raises BlisError, and KeyboardInterrupt without a best.
    """
    query = replace(query, settings=_with_load_defaults(query))
    question = question_of_plan(query.simulation, query.settings, query.choices)
    if question is not None:
        query = replace(query, settings={**query.settings, "latency_model": question.latency_model})
    sims.limits_ms = query.targets.limits_ms
    alone = _outcome_of_load(sims, query)
    load, num_requests = _mean_load(alone, query), int(alone.figures["injected_requests"] or 0)
    if query.simulation.name == "run" and not query.settings.get("workload_spec"):
        query = replace(query, settings={"num_requests": num_requests, **query.settings})
    candidates = candidates_of(query.simulation, query.settings, query.choices, query.prices, load, query.targets)
    met: dict[Cell, Trial | None] = dict.fromkeys((each.gpu, each.shape) for each in candidates.found)
    winner: Winner | None = None
    is_interrupted = False
    with progress("planning", len(candidates.found) + _TEST_STEPS) as advance:
        try:
            winner = _tested_winner(sims, query, candidates, met, advance or _nothing)
        except KeyboardInterrupt:
            first = _cheapest_of(met)
            if first is None:
                raise
            is_interrupted = True
            winner = untested(sims, first)
    return CapacityPlan(
        model=str(query.settings["model"]),
        query=query,
        step_times="" if question is None else question.text(),
        load=load,
        best={key: None if trial is None else (trial, outcome_of(sims, trial)) for key, trial in met.items()},
        refused=candidates.refused,
        winner=winner,
        num_simulations=sims.num_computed,
        notes=(alone if winner is None else winner.outcome).notes,
        is_interrupted=is_interrupted,
    )


def _nothing() -> None:
    """Show no progress."""


def _cheapest_of(met: Mapping[Cell, Trial | None]) -> Trial | None:
    found = (trial for trial in met.values() if trial is not None)
    return min(found, key=lambda trial: trial.cost_per_hour, default=None)


def _with_load_defaults(query: CapacityQuery) -> dict[str, Any]:
    """Return the settings with the rate that a run has without one, that of its spec if there is one."""
    settings = dict(query.settings)
    if query.simulation.name != "run" or settings.get("concurrency") or "rate" in settings:
        return settings
    spec, scenario = settings.get("workload_spec"), settings.get("workload")
    if scenario in SCENARIO_NAMES:
        return {**settings, "rate": Scenario(name=scenario).rate_per_s}
    with suppress(TraceError):  # a spec without a rate
        settings["rate"] = DEFAULT_RATE if spec is None else rate_of(read_spec(spec))
    return settings


def _outcome_of_load(sims: Simulations, query: CapacityQuery) -> Outcome:
    """Return the outcome of the load with plenty of instances. Raises BlisError where it cannot be simulated."""
    settings = {**query.settings, "num_instances": _PROBE_INSTANCES}
    first: BlisError | None = None
    for gpu, tp in product(query.choices.gpus, sorted(query.choices.tps, reverse=True)):
        placed = {**settings, "hardware": gpu, "tp": tp}
        try:
            options_from(query.simulation.options, **{**placed, "json": True})
        except BlisError as error:
            first = first or error
            continue
        outcome = sims.outcome(Wanted(placed, by_longer=False))
        if not outcome.error:
            return outcome
        first = first or BenchError(outcome.error)
    raise first or BenchError("no GPU type to plan for")


def _mean_load(outcome: Outcome, query: CapacityQuery) -> MeanLoad:
    """Return the mean load of a run. Raises BenchError where no request completes."""
    figures = outcome.figures
    completed = figures["completed_requests"] or 0
    if not completed:
        raise BenchError("the load of the plan has no request that completes")
    duration_s = figures["vllm_estimated_duration_s"] or 1.0
    is_described = query.simulation.name != "run" or query.settings.get("workload_spec")
    rate = figures.get("load_arrived_per_s") if is_described else query.settings.get("rate")
    new = 1 - (figures["cache_hit_rate"] or 0.0)
    rate_per_s = float(rate or completed / duration_s)
    return MeanLoad(
        rate_per_s=rate_per_s,
        prompt_tokens=new * (figures["total_input_tokens"] or 0) / completed,
        output_tokens=(figures["total_output_tokens"] or 0) / completed,
        whole_prompt_tokens=(figures["total_input_tokens"] or 0) / completed,
        span_s=completed / rate_per_s if "rate" in query.settings else 0.0,
    )


def _tested_winner(
    sims: Simulations,
    query: CapacityQuery,
    candidates: Candidates,
    met: dict[Cell, Trial | None],
    advance: Callable[[], None],
) -> Winner | None:
    """Search the cheapest trial of each GPU type and shape, and return the cheapest of them with its tests, if any.

    Runs of the given length decide first, and longer ones judge each answer afterwards. That of the winner comes last,
    as the test of its highest rate may imply it. `met` has the best so far at any time.
    """
    judge = _noting(judge_with(sims, query.targets), met)
    searches = {key: partial(_search_of_cell, query, candidates, key, advance) for key in met}
    met.update(zip(searches, side_by_side([each() for each in searches.values()], judge), strict=True))
    winner = _cheapest_of(met)
    others = [key for key in met if met[key] is not winner]
    met.update(zip(others, side_by_side([confirmed(met[key], searches[key]) for key in others], judge), strict=True))
    while (winner := _cheapest_of(met)) is not None:
        tested = stressed(sims, winner, query.targets, query.most_gpus, advance)
        if tested is not None:
            return tested
        key = winner.candidate.gpu, winner.candidate.shape
        (met[key],) = side_by_side([by_longer(searches[key]())], judge)
    return None


def _search_of_cell(query: CapacityQuery, candidates: Candidates, cell: Cell, advance: Callable[[], None]) -> Search:
    """Search a GPU type and shape: first all candidates, then variants of the best; or all counts, by longer runs."""
    found = [each for each in candidates.found if (each.gpu, each.shape) == cell]
    if not query.is_exhaustive:
        return _cheapest_of_cell(found, query.settings, query.most_gpus, advance)
    grid = [each for one in found for each in (one, *_variants(one, query.settings))]
    return by_longer(every_count(grid, query.most_gpus))


def _cheapest_of_cell(
    candidates: Sequence[Candidate], settings: Mapping[str, Any], most_gpus: int, advance: Callable[[], None]
) -> Search:
    """Search all candidates of a GPU type and shape, and then variants of the best."""
    found = yield from cheapest(candidates, most_gpus, on_settled=advance)
    return (yield from _refined(found, candidates, settings, most_gpus))


def _refined(
    best: Trial | None, candidates: Sequence[Candidate], settings: Mapping[str, Any], most_gpus: int
) -> Search:
    """Search variants of the best trial of a shape, and all candidates with what made it cheaper."""
    if best is None:
        return None
    better = yield from cheapest(_other_limits(best, settings), most_gpus, best)
    if better is None or better is best:
        return best
    given, base = better.candidate.settings, best.candidate
    changed = {name: value for name, value in given.items() if base.settings.get(name) != value}
    label = better.candidate.label.removeprefix(base.label).strip()
    return (
        yield from cheapest([with_other_settings(each, label, **changed) for each in candidates], most_gpus, better)
    )


def _noting(judge: Judge, met: dict[Cell, Trial | None]) -> Judge:
    """Return a judge that keeps the cheapest trial of each GPU type and shape that met the targets."""

    def noting(asked: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        for place, judgement in judge(asked):
            candidate, counts, _ = asked[place]
            trial, key = Trial(candidate, counts, judgement), (candidate.gpu, candidate.shape)
            best = met[key]
            is_the_best = best is not None and (best.candidate, best.counts) == (candidate, counts)
            if is_the_best:  # which longer runs judge now
                met[key] = trial if judgement.is_met else None
            elif judgement.is_met and (best is None or trial.cost_per_hour < best.cost_per_hour):
                met[key] = trial
            yield place, judgement

    return noting


def _other_limits(trial: Trial, settings: Mapping[str, Any]) -> list[Candidate]:
    """Return the variants of a trial, without those whose limit of sequences is beyond what can run at once."""
    use = trial.judgement.use
    reached = inf if use is None else _MOST_RISE * use.peak_sequences
    known = inf if use is None or not use.peak_sequences_fraction else use.peak_sequences / use.peak_sequences_fraction
    return [
        each
        for each in _variants(trial.candidate, settings)
        if min(each.settings.get("max_num_seqs", 0), known) < reached
    ]


def _variants(candidate: Candidate, settings: Mapping[str, Any]) -> list[Candidate]:
    """Return a candidate with another router and other limits of a step, where the user sets neither."""
    found = []
    if "routing_policy" not in settings:
        found.append(with_other_settings(candidate, "least-loaded", routing_policy="least-loaded"))
    if "max_num_seqs" not in settings:
        found += [with_other_settings(candidate, f"{each} seqs", max_num_seqs=each) for each in (128, 512)]
    return found
