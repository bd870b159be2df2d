"""Routers: which instance gets a request, and their names. A new router is a class and a row of `ROUTERS`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from blis_sim.engine.cluster.scorers import SCORERS, Scorer, ScorerSettings, always, ignore_choice
from blis_sim.engine.cluster.settings import TieBreaker
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.cluster.weights import DEFAULT_WEIGHTS, Weights
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import Request
from blis_sim.options.addition import sequential_sum
from blis_sim.options.registry import Registry


class Choice(NamedTuple):
    """The candidate chosen for a request."""

    place: int
    """Index of the chosen candidate."""
    scores: Sequence[float] | None = None
    """Scores of all candidates, if the router compared any; the larger the better."""


class Router(Protocol):
    """Chooses instances for requests. A router with state is an object of its own for each cluster."""

    @property
    def reads_snapshots(self) -> bool:
        """Whether choices depend on snapshots of instances; otherwise snapshots are not refreshed."""
        ...

    @property
    def reads_in_flight(self) -> bool:
        """Whether choices depend on requests in flight; otherwise instances are only advanced for reports."""
        ...

    @property
    def reads_caches(self) -> bool:
        """Whether choices depend on the content of KV caches; otherwise the content is not copied."""
        ...

    @property
    def reads_adapters(self) -> bool:
        """Whether choices depend on the LoRA adapters in use on instances; otherwise adapters are not collected."""
        ...

    def choose(self, request: Request, state: RoutingState) -> Choice:
        """Choose one of `state.candidates`, of which there is at least one. The request is sent to the chosen one."""
        ...


def _length_drawn_by(request: Request) -> int:
    """Return the length that draws depend on; 0 for requests for one token, by which only clients of servers count."""
    return 0 if request.max_output_tokens == 1 else request.input_tokens


def best_with_ties(request: Request, scores: Sequence[float], ties: TieBreaker) -> int:
    """Return the index of the largest score; ties are drawn."""
    best = max(scores)
    places = [place for place, score in enumerate(scores) if score == best]
    return places[ties(len(places), _length_drawn_by(request))]


class LoadObliviousRouter(ABC):
    """A router that only counts requests. Many requests can be routed at once, without stopping the instances at
    each."""

    reads_snapshots = False
    reads_in_flight = False
    reads_caches = False
    reads_adapters = False

    @abstractmethod
    def places(self, num_candidates: int, requests: Sequence[Request]) -> list[int]:
        """Return the index of a candidate for each of the next requests."""

    def choose(self, request: Request, state: RoutingState) -> Choice:
        (place,) = self.places(len(state.candidates), (request,))
        return Choice(place)


class RoundRobin(LoadObliviousRouter):
    """Takes the candidates in turn; the counter continues when candidates change."""

    def __init__(self) -> None:
        self._num_routed = 0

    def places(self, num_candidates: int, requests: Sequence[Request]) -> list[int]:
        first = self._num_routed
        self._num_routed += len(requests)
        return [number % num_candidates for number in range(first, self._num_routed)]


class Random(LoadObliviousRouter):
    """Draws a candidate, each with equal probability."""

    def __init__(self, ties: TieBreaker) -> None:
        self._draw = ties

    def places(self, num_candidates: int, requests: Sequence[Request]) -> list[int]:
        return [self._draw(num_candidates, _length_drawn_by(request)) for request in requests]


@dataclass(frozen=True, slots=True)
class LoadRouter:
    """Chooses the candidate that `choose_place` picks for a request from the loads of all."""

    choose_place: Callable[[Request, Sequence[int]], int]
    reads_snapshots: bool = True
    reads_in_flight: bool = True
    reads_caches: bool = False
    reads_adapters: bool = False

    def choose(self, request: Request, state: RoutingState) -> Choice:
        return Choice(self.choose_place(request, [snapshot.load for snapshot in state.candidates]))


def least_loaded(ties: TieBreaker) -> LoadRouter:
    """Return a router that chooses the candidate with the least effective load; ties are drawn."""
    return LoadRouter(lambda request, loads: best_with_ties(request, [-load for load in loads], ties))


def always_busiest() -> LoadRouter:
    """Return a router that chooses the most effective load, the first of equals: a worst case for tests."""
    return LoadRouter(lambda _request, loads: loads.index(max(loads)))


class LeastOutstanding:
    """Chooses the candidate with the fewest unfinished requests, running ones included; the first of equals."""

    reads_in_flight = True
    reads_snapshots = reads_caches = reads_adapters = False

    def choose(self, request: Request, state: RoutingState) -> Choice:
        outstanding = [snapshot.num_in_flight for snapshot in state.candidates]
        return Choice(outstanding.index(min(outstanding)))


class Weighted:
    """Chooses the candidate with the largest weighted sum of scores, each brought into 0 to 1; ties are drawn.

    Only ratios of weights matter. Scores are added up in the order of the scorers, which decides about ties.
    """

    reads_snapshots = True

    def __init__(self, scorers: Sequence[tuple[Scorer, float]], ties: TieBreaker) -> None:
        all_weights = sequential_sum(weight for _, weight in scorers)
        self.reads_in_flight = any(scorer.reads_in_flight for scorer, _ in scorers)
        self.reads_caches = any(scorer.reads_caches for scorer, _ in scorers)
        self.reads_adapters = any(scorer.reads_adapters for scorer, _ in scorers)
        self._shares = [(scorer.score, weight / all_weights) for scorer, weight in scorers]
        self._observers = [scorer.routed for scorer, _ in scorers if scorer.routed is not ignore_choice]
        self._ties = ties
        self._reuse_conditions = list(
            dict.fromkeys(scorer.holds for scorer, _ in scorers if scorer.holds is not always)
        )
        self._reusable_totals: list[float] = []
        """Totals that are valid for all requests for which `holds` of every scorer is true."""
        self._reusable_version = -1
        """Value of `report_version` when the totals were computed."""

    def choose(self, request: Request, state: RoutingState) -> Choice:
        totals = self._totals(request, state)
        place = best_with_ties(request, totals, self._ties)
        for routed in self._observers:
            routed(request, state.candidates[place].instance, state)
        return Choice(place, totals)

    def _totals(self, request: Request, state: RoutingState) -> list[float]:
        for holds in self._reuse_conditions:
            if not holds(request):
                return self._computed_totals(request, state)
        if state.report_version != self._reusable_version:
            self._reusable_totals, self._reusable_version = self._computed_totals(request, state), state.report_version
        return self._reusable_totals

    def _computed_totals(self, request: Request, state: RoutingState) -> list[float]:
        totals = [0.0] * len(state.candidates)
        for score_of, share in self._shares:
            scores = score_of(request, state)
            totals = [
                total + (0.0 if score < 0 else 1.0 if score > 1 else score) * share
                for total, score in zip(totals, scores, strict=True)
            ]
        return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of routers."""

    ties: TieBreaker
    weights: Weights = DEFAULT_WEIGHTS
    """Scorers of the weighted router, in order."""
    scorers: ScorerSettings = field(default_factory=ScorerSettings)


def _weighted(settings: RouterSettings) -> Router:
    return Weighted([(SCORERS[name](settings.scorers), weight) for name, weight in settings.weights], settings.ties)


ROUTERS = Registry[Callable[[RouterSettings], Router]]("blis.routers", "choose") | {
    "round-robin": lambda _: RoundRobin(),
    "least-loaded": lambda settings: least_loaded(settings.ties),
    "least-outstanding": lambda _: LeastOutstanding(),
    "always-busiest": lambda _: always_busiest(),
    "random": lambda settings: Random(settings.ties),
    "weighted": _weighted,
}


class CheckedRouter:
    """A router of another package, whose choices are checked. Raises EngineError for a choice that is none."""

    def __init__(self, name: str, router: Router) -> None:
        self.reads_snapshots = router.reads_snapshots
        self.reads_in_flight = router.reads_in_flight
        self.reads_caches = router.reads_caches
        self.reads_adapters = router.reads_adapters
        self._name = name
        self._choose = router.choose

    def choose(self, request: Request, state: RoutingState) -> Choice:
        """Return the choice of the router."""
        choice = self._choose(request, state)
        place = getattr(choice, "place", None)
        if type(place) is int and 0 <= place < len(state.candidates):
            return choice
        raise EngineError(
            f"--routing-policy {self._name}: choose must return a Choice with a place from 0 to "
            f"{len(state.candidates) - 1}, got {choice!r} for request {request.id!r}"
        )


def new_router(name: str, settings: RouterSettings) -> Router:
    """Return a new router of this name. Raises EngineError where one of another package is no router."""
    router = ROUTERS[name](settings)
    if name in ROUTERS.keys():  # noqa: SIM118 - `in` alone also looks into other packages
        return router
    missing = [each for each in (*_SWITCHES, "choose") if not hasattr(router, each)]
    if missing:
        raise EngineError(f"--routing-policy {name}: a router needs {', '.join(missing)}")
    return CheckedRouter(name, router)


_SWITCHES = ("reads_snapshots", "reads_in_flight", "reads_caches", "reads_adapters")
