"""A scorer, an admission policy and a router of one's own, each against what is built in. Takes a few seconds.

In the project, each would be a file under blis_sim/engine/cluster/ and one row of the registry beside it.
"""

from collections.abc import Iterator, Sequence

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionPolicy, AdmissionSettings
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.routing import ROUTERS, Choice, Router, RouterSettings, Weighted
from blis_sim.engine.cluster.scorers import SCORERS, Scorer, ScorerSettings, Scores
from blis_sim.engine.cluster.settings import Freshness, SeededTieBreaker, TieBreaker
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.events import Finished
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.units import Micros

NUM_INSTANCES = 4
NUM_REQUESTS = 1_200


def tenants_at_home(request: Request, state: RoutingState) -> Scores:
    """A scorer is a function from a request to a score for each candidate: here 1 for the home of its tenant."""
    home = sum(request.tenant.encode()) % NUM_INSTANCES
    return [float(snapshot.instance == home) for snapshot in state.candidates]


class NoMoreThan:
    """An admission policy decides which requests come in: here as many at a time as the instances bear."""

    reads_snapshots = True
    routed = None

    def __init__(self, most_in_flight: int) -> None:
        self._most_in_flight = most_in_flight

    def admits(self, request: Request, state: RoutingState) -> bool:
        return sum(snapshot.num_in_flight for snapshot in state.candidates) < self._most_in_flight


class BetterOfTwo:
    """A router chooses one of the candidates: here the less loaded of two that are drawn."""

    reads_snapshots = True
    reads_in_flight = True
    reads_caches = False
    reads_adapters = False

    def __init__(self, draw: TieBreaker) -> None:
        self._draw = draw

    def choose(self, request: Request, state: RoutingState) -> Choice:
        drawn = [self._draw(len(state.candidates), request.input_tokens) for _ in range(2)]
        return Choice(min(drawn, key=lambda place: state.candidates[place].load))


def main() -> None:
    """Send the same requests through clusters that differ in one part."""
    always = ADMISSIONS["always-admit"](AdmissionSettings())
    settings = RouterSettings(ties=SeededTieBreaker(1))
    queue_depth = SCORERS["queue-depth"](ScorerSettings())
    at_home = Weighted([(Scorer(tenants_at_home), 2.0), (queue_depth, 1.0)], settings.ties)
    print(f"{'policy':24} {'completed':>9} {'rejected':>9} {'mean TTFT':>10} {'p99 TTFT':>10} {'cache hits':>11}")
    report("round-robin", ROUTERS["round-robin"](settings), always)
    report("least-loaded", ROUTERS["least-loaded"](settings), always)
    report("better of two", BetterOfTwo(settings.ties), always)
    report("tenants at home", at_home, always)
    report("tenants at home, limited", at_home, NoMoreThan(60))


def report(name: str, router: Router, admission: AdmissionPolicy) -> None:
    """Run one cluster and print what became of its requests."""
    deployment = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1))
    engines = [Engine(deployment.config, deployment.latency, reports_steps=False) for _ in range(NUM_INSTANCES)]
    cluster = Cluster(engines, admission, router, Freshness(refresh_interval_us=0))
    endings = [event for event in run_virtual(cluster, arrivals()) if isinstance(event, Finished)]
    ttfts_ms = sorted(
        (each.sequence.first_token_at - each.sequence.arrived_at) / 1000
        for each in endings
        if each.outcome is Outcome.COMPLETED and each.sequence.first_token_at is not None
    )
    hits = sum(engine.kv.hit_tokens for engine in engines) / sum(engine.kv.queried_tokens for engine in engines)
    print(
        f"{name:24} {len(ttfts_ms):9} {len(endings) - len(ttfts_ms):9} {mean(ttfts_ms):7.1f} ms "
        f"{ttfts_ms[int(0.99 * len(ttfts_ms))]:7.1f} ms {hits:11.1%}"
    )


def arrivals() -> Iterator[tuple[Micros, Request]]:
    """100 requests per second from 60 tenants, each of which has prompts that begin alike."""
    for number in range(NUM_REQUESTS):
        tenant = f"tenant-{number * number % 61}"
        blocks = PrefixGroupBlocks(f"r{number}", tenant, 100)
        yield number * 10_000, Request(f"r{number}", 1_700 + number % 50, 40, blocks, 40, tenant=tenant)


def mean(values: Sequence[float]) -> float:
    """Return their mean."""
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
