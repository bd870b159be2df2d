"""Small clusters with a step of 1000 us and nothing that takes time besides."""

from typing import Any

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionSettings
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.routing import RoundRobin, Router
from blis_sim.engine.cluster.settings import Freshness
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency, config

MOST_TURNS = 5_000
"""More than any of these clusters takes to become idle."""


def cluster(num_instances: int = 1, router: Router | None = None, **settings: Any) -> Cluster:
    """Routed in turn unless by `router`, seen as it is; `settings` are those of all engines."""
    engines = [Engine(config(**settings), TestLatency()) for _ in range(num_instances)]
    return Cluster(
        engines,
        ADMISSIONS["always-admit"](AdmissionSettings()),
        router or RoundRobin(),
        Freshness(refresh_interval_us=0, cache_delay_us=0),
    )


def endings(simulated: Cluster, arrivals: list[tuple[Micros, Request]]) -> dict[str, tuple[Micros, str]]:
    """When and how each request ended; fails when the cluster does not become idle."""
    for at, request in arrivals:
        simulated.submit(request, at)
    events: list[Event] = []
    for _ in range(MOST_TURNS):
        if (due_at := simulated.next_event_at()) is None:
            break
        events += simulated.advance(due_at)
    else:
        raise AssertionError(f"after {MOST_TURNS} turns something is still due")
    return {each.sequence.request.id: (each.at, each.outcome.value) for each in events if isinstance(each, Finished)}
