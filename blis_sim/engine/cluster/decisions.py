"""What a cluster decided about each request, and how much better another instance would have scored."""

from dataclasses import dataclass

from blis_sim.engine.cluster.routing import Choice
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance that a request could have gone to, as the router saw it."""

    instance: str
    score: float
    num_waiting: int
    num_running: int
    num_in_flight: int
    kv_usage_fraction: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request was sent. `regret` is by how much the best candidate scored above the chosen one."""

    at: Micros
    request_id: str
    instance: str
    regret: float
    candidates: tuple[Candidate, ...]
    """The best ones, the best first."""


class DecisionLog:
    """All decisions of a run, each with its `num_candidates` best candidates."""

    def __init__(self, num_candidates: int = 0) -> None:
        self.decisions: list[Decision] = []
        self.num_admitted = 0
        self.num_rejected = 0
        self._num_candidates = num_candidates

    def note_admission(self, is_admitted: bool) -> None:
        """A request was let in or not."""
        self.num_admitted += is_admitted
        self.num_rejected += not is_admitted

    def note(self, request: Request, choice: Choice, state: RoutingState) -> None:
        """A request was sent to an instance. A router without scores is judged by effective load, less is better."""
        scores = choice.scores
        if scores is None:
            scores = [float(-snapshot.load) for snapshot in state.candidates]
        by_score = sorted(range(len(scores)), key=lambda place: -scores[place])
        self.decisions.append(
            Decision(
                at=state.now,
                request_id=request.id,
                instance=state.candidates[choice.place].name,
                regret=max(0.0, scores[by_score[0]] - scores[choice.place]),
                candidates=tuple(_candidate(state, place, scores[place]) for place in by_score[: self._num_candidates]),
            )
        )


def _candidate(state: RoutingState, place: int, score: float) -> Candidate:
    snapshot = state.candidates[place]
    return Candidate(
        instance=snapshot.name,
        score=score,
        num_waiting=snapshot.num_waiting,
        num_running=snapshot.num_running,
        num_in_flight=snapshot.num_in_flight,
        kv_usage_fraction=snapshot.kv_usage_fraction,
    )
