"""Scores from several sides, weighted and added up: as llm-d's endpoint picker does."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cluster.routing.policy import Choice, one_of_the_best
from engine.cluster.scorers.scorer import Scorer
from engine.cluster.state import RoutingState
from engine.cluster.ties import Ties
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Weighted:
    """The candidate with the largest weighted sum of scores, each brought into 0 to 1; who it is among equals is drawn.

    Only ratios of weights matter. The order in which scores are added up is that of the scorers, which decides what is
    equal.
    """

    scorers: Sequence[tuple[Scorer, float]]
    ties: Ties
    reads_snapshots: bool = True

    @property
    def reads_caches(self) -> bool:
        return any(scorer.reads_caches for scorer, _ in self.scorers)

    @property
    def reads_adapters(self) -> bool:
        return any(scorer.reads_adapters for scorer, _ in self.scorers)

    def choose(self, request: Request, state: RoutingState) -> Choice:
        all_weights = sum(weight for _, weight in self.scorers)
        totals = [0.0] * len(state.candidates)
        for scorer, weight in self.scorers:
            share = weight / all_weights
            for place, score in enumerate(scorer.score(request, state)):
                totals[place] += (0.0 if score < 0 else 1.0 if score > 1 else score) * share
        place = one_of_the_best(totals, self.ties)
        for scorer, _ in self.scorers:
            scorer.routed(request, state.candidates[place].instance, state)
        return Choice(place, totals)
