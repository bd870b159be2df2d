"""Reports of a cluster: counters, the decision about each request, and events without those of prefill sub-requests."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from blis_sim.engine.cluster.routing import Choice
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros

NO_INSTANCE_SERVES = "no instance takes requests"
NO_INSTANCE_PREFILLS = "no instance computes prompts"
"""Reasons, sent to clients, for which requests are rejected at routing."""

MAX_CLASSES = 1000
OTHER_CLASSES = "other"
"""Name under which rejections of further classes are counted beyond `MAX_CLASSES`."""


@dataclass(slots=True)
class ClusterCounters:
    """Counters of requests that did not end on an instance. Only the cluster writes them."""

    num_ended: int = 0
    """Requests rejected at admission or routing, aborted by their clients, or ended at the gateway or in transfer."""
    num_rejected_at_admission: int = 0
    rejected_by_class: dict[str, int] = field(default_factory=dict)
    """Requests rejected at admission by SLO class; requests without a class count as standard."""
    num_rejected_at_routing: int = 0
    """Requests rejected because no instance takes requests."""

    def count_rejection_at_admission(self, slo_class: str) -> None:
        """Count a request that admission rejected. Clients name classes, so the number of names is bounded."""
        self.num_rejected_at_admission += 1
        name = slo_class or "standard"
        if name not in self.rejected_by_class and len(self.rejected_by_class) >= MAX_CLASSES:
            name = OTHER_CLASSES
        self.rejected_by_class[name] = self.rejected_by_class.get(name, 0) + 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate of a routing decision with the figures that the router used."""

    instance: str
    score: float
    num_waiting: int
    num_running: int
    num_in_flight: int
    kv_usage_fraction: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One routing decision. `regret` is the score of the best candidate minus the score of the chosen one.

    As in BLIS it is 0 without candidates to compare with.
    """

    at: Micros
    request_id: str
    instance: str
    regret: float
    candidates: tuple[Candidate, ...]
    """The best candidates, the best first."""


class DecisionLog:
    """All routing decisions of a run, each with its `num_candidates` best candidates."""

    def __init__(self, num_candidates: int = 0) -> None:
        self.decisions: list[Decision] = []
        self.num_admitted = 0
        self.num_rejected = 0
        self._num_candidates = num_candidates

    def note_admission(self, is_admitted: bool) -> None:
        """Count an admission decision."""
        self.num_admitted += is_admitted
        self.num_rejected += not is_admitted

    def note(self, request: Request, choice: Choice, state: RoutingState) -> None:
        """Record a routing decision. Without scores of the router, minus the effective load is the score."""
        scores = choice.scores
        if scores is None:
            scores = [float(-snapshot.load) for snapshot in state.candidates]
        by_score = sorted(range(len(scores)), key=lambda place: -scores[place])
        self.decisions.append(
            Decision(
                at=state.now,
                request_id=request.id,
                instance=state.candidates[choice.place].name,
                regret=max(0.0, scores[by_score[0]] - scores[choice.place]) if self._num_candidates else 0.0,
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


def without_prefill_sub_requests(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events without those of prefill sub-requests, which are internal to the cluster."""
    for event in events:
        if isinstance(event, Scheduled | Preempted | Finished):
            if not event.sequence.is_prefill_subrequest:
                yield event
        elif isinstance(event, StepDone) and any(sequence.is_prefill_subrequest for sequence in event.emitted):
            yield replace(event, emitted=[sequence for sequence in event.emitted if not sequence.is_prefill_subrequest])
        else:
            yield event
