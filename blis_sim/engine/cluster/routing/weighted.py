"""Scores from several sides, weighted and added up: as llm-d's endpoint picker does."""

from collections.abc import Sequence

from blis_sim.engine.cluster.routing.policy import Choice, one_of_the_best
from blis_sim.engine.cluster.scorers.scorer import Scorer, always, keeps_nothing_in_mind
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.cluster.ties import Ties
from blis_sim.engine.request import Request
from blis_sim.options.addition import added_up


class Weighted:
    """The candidate with the largest weighted sum of scores, each brought into 0 to 1; who it is among equals is drawn.

    Only ratios of weights matter. The order in which scores are added up is that of the scorers, which decides what is
    equal.
    """

    reads_snapshots = True

    def __init__(self, scorers: Sequence[tuple[Scorer, float]], ties: Ties) -> None:
        all_weights = added_up(weight for _, weight in scorers)
        self.reads_in_flight = any(scorer.reads_in_flight for scorer, _ in scorers)
        self.reads_caches = any(scorer.reads_caches for scorer, _ in scorers)
        self.reads_adapters = any(scorer.reads_adapters for scorer, _ in scorers)
        self._shares = [(scorer.score, weight / all_weights) for scorer, weight in scorers]
        self._observers = [scorer.routed for scorer, _ in scorers if scorer.routed is not keeps_nothing_in_mind]
        self._ties = ties
        self._holds = list(dict.fromkeys(scorer.holds for scorer, _ in scorers if scorer.holds is not always))
        self._held: list[float] = []
        """The totals for all requests for which the scores of all scorers hold."""
        self._held_since = -1
        """How much news there had been then."""

    def choose(self, request: Request, state: RoutingState) -> Choice:
        totals = self._totals(request, state)
        place = one_of_the_best(totals, self._ties)
        for routed in self._observers:
            routed(request, state.candidates[place].instance, state)
        return Choice(place, totals)

    def _totals(self, request: Request, state: RoutingState) -> list[float]:
        for holds in self._holds:
            if not holds(request):
                return self._worked_out(request, state)
        if state.num_news != self._held_since:
            self._held, self._held_since = self._worked_out(request, state), state.num_news
        return self._held

    def _worked_out(self, request: Request, state: RoutingState) -> list[float]:
        totals = [0.0] * len(state.candidates)
        for score_of, share in self._shares:
            scores = score_of(request, state)
            totals = [
                total + (0.0 if score < 0 else 1.0 if score > 1 else score) * share
                for total, score in zip(totals, scores, strict=True)
            ]
        return totals
