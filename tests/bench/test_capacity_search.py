"""The search for counts of instances, against all counts of small grids and a model of queues instead of an engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.bench.candidates import SERVED, Candidate, Judgement
from blis_sim.bench.capacity import Search, Trial, TrialRequest, by_longer, cheapest, confirmed, side_by_side
from blis_sim.engine.latency.confidence import Sureness

MOST = 12
"""Instances of a pool on the grid."""


def candidate(busy: Sequence[float], gpus: Sequence[int], price: float, slowness: float) -> Candidate:
    return Candidate(
        gpu="H100",
        settings={"slowness": slowness, "busy": tuple(busy)},
        gpus_per_instance=tuple(gpus),
        busy_instances=tuple(busy),
        price_per_gpu_hour=price,
        label="any",
        sureness=Sureness("fitted", {}),
    )


def judged(ask: TrialRequest) -> Judgement:
    """Latencies that grow with the load of each pool, and without end towards full load."""
    found, counts, _ = ask
    slowness = found.settings["slowness"]
    loads = {}
    for name, busy, count in zip(("ttft_p99_ms", "itl_p99_ms"), found.settings["busy"], counts, strict=False):
        free = 1 - busy / count
        loads[name] = slowness / free if free > 0 else 100.0 * busy / count
    return Judgement(loads, max(loads, key=loads.__getitem__))


def searched(candidates: Sequence[Candidate], most_gpus: int) -> tuple[Trial | None, int]:
    asked: list[TrialRequest] = []

    def judge(requests: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        for place, each in enumerate(requests):
            asked.append(each)
            yield place, judged(each)

    (found,) = side_by_side([cheapest(candidates, most_gpus)], judge)
    return found, len(asked)


def exhaustive(candidates: Sequence[Candidate], most_gpus: int) -> float | None:
    costs = [
        each.cost_per_hour(counts)
        for each in candidates
        for counts in product(range(1, MOST + 1), repeat=len(each.gpus_per_instance))
        if each.num_gpus(counts) <= most_gpus and judged(TrialRequest(each, counts)).is_met
    ]
    return min(costs, default=None)


shares = st.floats(0.05, 5.0)
aggregated = st.builds(
    lambda busy, gpus, price, slowness: candidate((busy,), (gpus,), price, slowness),
    shares, st.sampled_from((1, 2, 4)), st.floats(0.5, 5), st.floats(0.05, 0.9),
)  # fmt: skip
split = st.builds(
    lambda prefill, decode, gpus, price, slowness: candidate((prefill, decode), gpus, price, slowness),
    shares, shares, st.sampled_from(((1, 1), (2, 1), (1, 4))), st.floats(0.5, 5), st.floats(0.05, 0.6),
)  # fmt: skip


@given(st.lists(aggregated, min_size=1, max_size=5))
@settings(deadline=None)
def test_the_cheapest_counts_of_all_aggregated_instances_are_found(candidates: list[Candidate]) -> None:
    best = exhaustive(candidates, 1000)
    found, _ = searched(candidates, 1000)
    if best is not None:
        assert found is not None
        assert found.cost_per_hour <= best * 1.000001


@given(st.lists(split, min_size=1, max_size=4))
@settings(deadline=None)
def test_counts_of_two_pools_are_at_most_three_tenths_above_the_cheapest(candidates: list[Candidate]) -> None:
    """A miss of one pool hides how much of the other is enough, so one instance more may remain."""
    best = exhaustive(candidates, 1000)
    found, _ = searched(candidates, 1000)
    if best is not None:
        assert found is not None
        assert found.cost_per_hour <= 1.3 * best


def judged_late(ask: TrialRequest) -> Judgement:
    """Latencies of a short run, in which only longer ones see that instances are overloaded from nine tenths on."""
    found = judged(ask)
    is_overloaded = any(
        busy > 0.9 * count for busy, count in zip(ask.candidate.settings["busy"], ask.counts, strict=True)
    )
    if not ask.by_longer:
        return replace(found, is_open=True)
    return replace(found, worst=SERVED) if is_overloaded else found


def settled(search: Callable[[], Search]) -> Search:
    return (yield from confirmed((yield from search()), search))


@given(st.lists(aggregated, min_size=1, max_size=5))
@settings(deadline=None)
def test_longer_runs_of_the_answer_alone_find_what_longer_runs_of_all_trials_find(candidates: list[Candidate]) -> None:
    def judge(requests: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        return ((place, judged_late(each)) for place, each in enumerate(requests))

    (found,) = side_by_side([settled(lambda: cheapest(candidates, 1000))], judge)
    (thorough,) = side_by_side([by_longer(cheapest(candidates, 1000))], judge)
    assert (found and found.cost_per_hour) == (thorough and thorough.cost_per_hour)
    if found is not None:
        assert not found.judgement.is_open


def test_only_the_answer_is_judged_by_longer_runs_where_these_agree() -> None:
    asked: list[TrialRequest] = []

    def judge(requests: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        for place, each in enumerate(requests):
            asked.append(each)
            yield place, replace(judged(each), is_open=not each.by_longer)

    (found,) = side_by_side([settled(lambda: cheapest([candidate((3.2,), (1,), 1.0, 0.3)], 1000))], judge)
    assert found is not None
    assert [each.counts for each in asked if each.by_longer] == [found.counts]
    assert len(asked) > 2


def test_a_candidate_that_physics_makes_too_expensive_is_not_simulated() -> None:
    cheap, dear = candidate((1.0,), (1,), 1.0, 0.1), candidate((4.0,), (4,), 5.0, 0.1)
    alone, asked_alone = searched([cheap], 1000)
    both, asked = searched([dear, cheap], 1000)
    assert asked == asked_alone
    assert alone == both


def test_instances_that_miss_a_target_at_any_count_are_given_up() -> None:
    found, asked = searched([candidate((1.0,), (1,), 1.0, 1.5)], 100_000)
    assert found is None
    assert asked < 12


def test_a_percentile_that_stays_until_few_gaps_are_beyond_the_limit_does_not_end_the_search() -> None:
    """Beside a prompt a gap takes 100 ms, else 10; more instances have fewer gaps that are beside one."""

    def judge(requests: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        for place, (_, (count,), _) in enumerate(requests):
            share = 0.3 / count
            p99_ms = 100.0 if share > 0.01 else 10.0
            yield place, Judgement({"itl_p99_ms": p99_ms / 40}, "itl_p99_ms", mean_ms=10 + 90 * share)

    (found,) = side_by_side([cheapest([candidate((3.0,), (1,), 1.0, 0.5)], 1000)], judge)
    assert found is not None
    assert found.counts == (30,)


def test_no_deployment_has_more_gpus_than_allowed() -> None:
    found, _ = searched([candidate((3.0,), (8,), 1.0, 0.5)], 32)
    assert found is None
    allowed, _ = searched([candidate((3.0,), (8,), 1.0, 0.5)], 48)
    assert allowed is not None
    assert allowed.counts == (6,)


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_searches_side_by_side_find_what_each_finds_alone_whichever_simulation_ends_first(chance: Random) -> None:
    one, other = [candidate((2.3,), (1,), 1.0, 0.3)], [candidate((0.4, 1.9), (1, 2), 2.0, 0.2)]
    num_waiting: list[int] = []

    def judge(requests: Sequence[TrialRequest]) -> Iterator[tuple[int, Judgement]]:
        ended: set[int] = set()
        while waiting := [place for place in range(len(requests)) if place not in ended]:
            num_waiting.append(len(waiting))
            place = chance.choice(waiting)
            ended.add(place)
            yield place, judged(requests[place])

    together = side_by_side([cheapest(one, 100), cheapest(other, 100)], judge)
    assert together == [searched(one, 100)[0], searched(other, 100)[0]]
    assert num_waiting[0] == 2
