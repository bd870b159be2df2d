"""The search for counts of instances, against all counts of small grids and a model of queues instead of an engine."""

from collections.abc import Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.bench.capacity.candidates import Candidate
from blis_sim.bench.capacity.search import Trial, TrialRequest, cheapest, in_rounds
from blis_sim.bench.capacity.simulations import Judgement

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
        latency_model="fitted",
    )


def judged(ask: TrialRequest) -> Judgement:
    """Latencies that grow with the load of each pool, and without end towards full load."""
    found, counts = ask
    slowness = found.settings["slowness"]
    loads = {}
    for name, busy, count in zip(("ttft_p99_ms", "itl_p99_ms"), found.settings["busy"], counts, strict=False):
        free = 1 - busy / count
        loads[name] = slowness / free if free > 0 else 100.0 * busy / count
    return Judgement(loads, max(loads, key=loads.__getitem__))


def searched(candidates: Sequence[Candidate], most_gpus: int) -> tuple[Trial | None, int]:
    asked: list[TrialRequest] = []

    def judge(round_: Sequence[TrialRequest]) -> list[Judgement]:
        asked.extend(round_)
        return [judged(each) for each in round_]

    (found,) = in_rounds([cheapest(candidates, most_gpus)], judge)
    return found, len(asked)


def exhaustive(candidates: Sequence[Candidate], most_gpus: int) -> float | None:
    costs = [
        each.cost_per_hour(counts)
        for each in candidates
        for counts in product(range(1, MOST + 1), repeat=len(each.gpus_per_instance))
        if each.num_gpus(counts) <= most_gpus and judged((each, counts)).is_met
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
    best = exhaustive(candidates, 1000)
    found, _ = searched(candidates, 1000)
    if best is not None:
        assert found is not None
        assert found.cost_per_hour <= 1.3 * best


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


def test_no_deployment_has_more_gpus_than_allowed() -> None:
    found, _ = searched([candidate((3.0,), (8,), 1.0, 0.5)], 32)
    assert found is None
    allowed, _ = searched([candidate((3.0,), (8,), 1.0, 0.5)], 48)
    assert allowed is not None
    assert allowed.counts == (6,)


def test_searches_side_by_side_find_what_each_finds_alone() -> None:
    one, other = [candidate((2.3,), (1,), 1.0, 0.3)], [candidate((0.4, 1.9), (1, 2), 2.0, 0.2)]
    rounds: list[int] = []

    def judge(round_: Sequence[TrialRequest]) -> list[Judgement]:
        rounds.append(len(round_))
        return [judged(each) for each in round_]

    together = in_rounds([cheapest(one, 100), cheapest(other, 100)], judge)
    assert together == [searched(one, 100)[0], searched(other, 100)[0]]
    assert rounds[0] == 2
