"""Choice of the instance for each request."""

from collections import Counter

import pytest

from blis_sim.engine.cluster.routing import (
    ROUTERS,
    Choice,
    LeastOutstanding,
    Random,
    Router,
    RouterSettings,
    least_loaded,
    new_router,
)
from blis_sim.engine.cluster.settings import SeededTieBreaker
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import Request
from tests.engine.cluster.small_clusters import snapshot, state
from tests.fakes import request

REQUEST = request()


def last(num_equals: int, input_tokens: int) -> int:
    return num_equals - 1


def places(router: Router, count: int = 1, *loads: int) -> list[int]:
    seen = state(*(snapshot(number, waiting=load) for number, load in enumerate(loads)))
    return [router.choose(REQUEST, seen).place for _ in range(count)]


def test_the_least_loaded_instance_gets_the_request_and_ties_are_drawn() -> None:
    assert places(least_loaded(last), 1, 3, 1, 2) == [1]
    assert places(least_loaded(last), 1, 1, 3, 1) == [2]


def test_the_instance_with_the_fewest_unfinished_requests_gets_the_request() -> None:
    seen = state(*(snapshot(number) for number in range(4)))
    for candidate, in_flight in zip(seen.candidates, (3, 1, 2, 1), strict=True):
        candidate.num_in_flight = in_flight
    assert LeastOutstanding().choose(REQUEST, seen).place == 1


def test_at_random_all_get_their_share() -> None:
    counts = Counter(places(Random(SeededTieBreaker(3)), 3_000, 5, 0, 0))
    assert len(counts) == 3
    assert all(900 < count < 1_100 for count in counts.values())


def test_draws_follow_from_the_seed() -> None:
    def draws(seed: int) -> list[int]:
        ties = SeededTieBreaker(seed)
        return [ties(7, 100) for _ in range(50)]

    assert draws(1) == draws(1) != draws(2)
    assert set(draws(1)) == set(range(7))


def test_draws_of_a_length_do_not_depend_on_requests_of_other_lengths() -> None:
    def draws(lengths: list[int]) -> list[int]:
        ties = SeededTieBreaker(1)
        return [draw for length, draw in [(each, ties(7, each)) for each in lengths] if length == 100]

    assert draws([100] * 4) == draws([100, 200, 100, 300, 200, 100, 100]) == draws([200, 300, 100, 100, 200, 100, 100])


def test_a_request_without_equals_counts_as_one_with_equals() -> None:
    with_equals, without = SeededTieBreaker(1), SeededTieBreaker(1)
    with_equals(7, 100)
    assert without(1, 100) == 0
    assert [with_equals(7, 100) for _ in range(20)] == [without(7, 100) for _ in range(20)]


@pytest.mark.parametrize(("weights", "expected"), [((3.0, 1.0), 0), ((1.0, 3.0), 1), ((30.0, 10.0), 0)])
def test_weights_decide_between_scorers(weights: tuple[float, float], expected: int) -> None:
    settings = RouterSettings(ties=last, weights=(("queue-depth", weights[0]), ("kv-utilization", weights[1])))
    seen = state(snapshot(0, waiting=0, kv=1.0), snapshot(1, waiting=4, kv=0.0))
    choice = ROUTERS["weighted"](settings).choose(REQUEST, seen)
    assert choice.place == expected
    assert choice.scores is not None
    assert sorted(choice.scores) == pytest.approx([0.25, 0.75])


def test_equal_sums_are_drawn() -> None:
    router = ROUTERS["weighted"](RouterSettings(ties=last, weights=(("queue-depth", 1.0),)))
    assert router.choose(REQUEST, state(snapshot(0), snapshot(1))).place == 1


def test_routers_declare_the_reports_that_they_read() -> None:
    caches = RouterSettings(ties=last, weights=(("no-hit-lru", 1.0),))
    loads = RouterSettings(ties=last, weights=(("queue-depth", 1.0),))
    assert ROUTERS["weighted"](caches).reads_caches
    assert not ROUTERS["weighted"](loads).reads_caches
    assert not ROUTERS["round-robin"](loads).reads_snapshots


class Foreign:
    """A router of another package, whose choice is the class attribute."""

    reads_snapshots = reads_in_flight = reads_caches = reads_adapters = False
    choice: object = None

    def __init__(self, _settings: RouterSettings) -> None:
        pass

    def choose(self, _request: Request, _state: RoutingState) -> object:
        return self.choice


class NoRouter:
    """Lacks what a router reads."""

    def __init__(self, _settings: RouterSettings) -> None:
        pass

    def choose(self, _request: Request, _state: RoutingState) -> Choice:
        return Choice(0)


@pytest.mark.parametrize("choice", [Choice(2), Choice(-1), None, 1])
def test_a_wrong_choice_of_a_foreign_router_names_the_router(choice: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foreign, "choice", choice)
    router = new_router(f"{__name__}:Foreign", RouterSettings(ties=last))
    with pytest.raises(EngineError, match=r":Foreign: choose must return a Choice with a place from 0 to 1, got"):
        router.choose(REQUEST, state(snapshot(0), snapshot(1)))


def test_a_class_that_is_no_router_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r":NoRouter: a router needs reads_snapshots, .*, reads_adapters"):
        new_router(f"{__name__}:NoRouter", RouterSettings(ties=last))
