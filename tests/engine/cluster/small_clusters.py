"""Clusters of a few small engines, and states to decide from, for tests."""

from blis_sim.engine.cluster.admission import AdmissionPolicy, FunctionPolicy, always_admit
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.instance import Instances, InstanceState
from blis_sim.engine.cluster.routing import RoundRobin, Router
from blis_sim.engine.cluster.settings import Freshness, Latencies
from blis_sim.engine.cluster.snapshot import Snapshot
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Event, Finished
from blis_sim.engine.request import PrefixGroupBlocks, Request
from tests.fakes import TestLatency, config

ALWAYS_FRESH = Freshness(refresh_interval_us=0, cache_delay_us=0)


def engine(step_us: int = 1_000, **settings: int | str) -> Engine:
    return Engine(config(**settings), TestLatency(step_us=step_us))  # type: ignore[arg-type]


def cluster(
    num_instances: int = 2,
    router: Router | None = None,
    admission: AdmissionPolicy | None = None,
    freshness: Freshness = ALWAYS_FRESH,
    latencies: Latencies | None = None,
) -> Cluster:
    engines = [engine() for _ in range(num_instances)]
    return Cluster(engines, admission or FunctionPolicy(always_admit), router or RoundRobin(), freshness, latencies)


def endings(simulation: Cluster) -> list[tuple[int, str, str, int]]:
    """Instant, request, outcome and instance of all that end until nothing is left to do."""
    return [
        (each.at, each.sequence.request.id, str(each.outcome), each.sequence.instance)
        for each in run_out(simulation)
        if isinstance(each, Finished)
    ]


def run_out(simulation: Cluster) -> list[Event]:
    events: list[Event] = []
    while (due_at := simulation.next_event_at()) is not None:
        events += simulation.advance(due_at)
    return events


def state(*snapshots: Snapshot, now: int = 0, freshness: Freshness = ALWAYS_FRESH) -> RoutingState:
    """A state with these snapshots; the engines behind them are idle."""
    members = Instances()
    for _ in snapshots:
        members.add(engine(), InstanceState.READY, 0)
    made = RoutingState(members, freshness)
    made.candidates = list(snapshots)
    made.now = now
    return made


def snapshot(
    instance: int = 0, waiting: int = 0, running: int = 0, in_flight: int = 0, kv: float = 0.0, adapter: str = ""
) -> Snapshot:
    made = Snapshot(instance)
    made.num_waiting, made.num_running, made.num_in_flight = waiting, running, in_flight
    made.kv_usage_fraction = kv
    made.adapters = frozenset({adapter} - {""})
    return made


def sharing(request_id: str, group: str, shared_blocks: int, input_tokens: int = 40) -> Request:
    """A request whose first blocks, of 4 tokens each, are those of its group."""
    return Request(request_id, input_tokens, 1, PrefixGroupBlocks(request_id, group, shared_blocks), 1)
