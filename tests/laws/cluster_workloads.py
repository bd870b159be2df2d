"""Small clusters of edge cases: few instances of all kinds, every policy, stale reports, slow decisions, and faults."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionSettings
from blis_sim.engine.cluster.cluster import Cluster, DecisionLog
from blis_sim.engine.cluster.routing import ROUTERS, RouterSettings
from blis_sim.engine.cluster.scorers import SCORERS, ScorerSettings
from blis_sim.engine.cluster.settings import Freshness, Latencies, SeededTieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup, new_ranks
from blis_sim.engine.units import Micros
from tests.strategies import GRID_US, Workload, workloads

ADD, DRAIN, KILL = "add", "drain", "kill"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to an instance, by number; an instance added gets the next one."""

    at: Micros
    kind: str
    instance: int


@dataclass(frozen=True, slots=True)
class ClusterWorkload:
    """Arrivals, and the cluster that they arrive at."""

    workload: Workload
    num_instances: int
    has_other_settings: tuple[bool, ...]
    """Which instances are half as large as the others."""
    admission: str
    router: str
    weights: tuple[tuple[str, float], ...]
    freshness: Freshness
    latencies: Latencies
    faults: tuple[Fault, ...]
    num_ranks: int = 0
    """Data-parallel ranks of each instance; 0 for instances that are engines without ranks."""
    shares_experts: bool = False
    """Whether ranks step together."""

    def instance(self, number: int, reports_steps: bool = True) -> Engine | RankGroup:
        """The engine of an instance, or its ranks."""
        engine = self.engine(number, reports_steps)
        if not self.num_ranks:
            return engine
        return new_ranks(engine.config, self.workload.latency, self.num_ranks, shares_experts=self.shares_experts)

    def engine(self, number: int, reports_steps: bool = True) -> Engine:
        config = self.workload.config()
        if self.has_other_settings[number % len(self.has_other_settings)]:
            config = replace(config, max_num_seqs=max(1, config.max_num_seqs // 2), async_scheduling=False)
        return Engine(config, self.workload.latency, reports_steps)

    def cluster(self, reports_steps: bool = True) -> Cluster:
        settings = RouterSettings(
            ties=SeededTieBreaker(7),
            weights=self.weights,
            scorers=ScorerSettings(block_size_tokens=self.workload.config().block_size_tokens),
        )
        bucket = AdmissionSettings(token_bucket_capacity=50, token_bucket_refill_rate=5_000)
        return Cluster(
            [self.instance(number, reports_steps) for number in range(self.num_instances)],
            ADMISSIONS[self.admission](bucket),
            ROUTERS[self.router](settings),
            self.freshness,
            self.latencies,
            DecisionLog(2) if self.num_instances % 2 else None,
        )

    def apply(self, fault: Fault, cluster: Cluster, reports_steps: bool = True) -> None:
        """Submit a coming fault to the cluster."""
        if fault.kind == ADD:
            cluster.add_instance(self.instance(len(cluster.members), reports_steps), fault.at)
        elif fault.instance < len(cluster.members):
            act = cluster.drain if fault.kind == DRAIN else cluster.kill
            act(fault.instance, fault.at)


@st.composite
def cluster_workloads(draw: st.DrawFn, /, has_ranks: bool = False, **kinds: Any) -> ClusterWorkload:
    """A workload of `tests.strategies.workloads`, with a cluster around it; `has_ranks` makes instances of ranks."""
    num_instances = draw(st.integers(1, 4))
    faults = draw(
        st.lists(
            st.builds(
                Fault,
                st.integers(0, 30).map(lambda tick: tick * GRID_US),
                st.sampled_from([ADD, DRAIN, KILL, KILL]),
                st.integers(0, num_instances),
            ),
            max_size=4,
        )
    )
    return ClusterWorkload(
        workload=draw(workloads(**kinds)),
        num_instances=num_instances,
        has_other_settings=draw(st.sampled_from([(False,), (False, True), (True, False, False)])),
        admission=draw(st.sampled_from(["always-admit", "always-admit", *ADMISSIONS])),
        router=draw(st.sampled_from(["weighted", *ROUTERS])),
        weights=tuple(
            (name, draw(st.sampled_from([0.5, 1.0, 3.0])))
            for name in draw(st.lists(st.sampled_from(list(SCORERS)), min_size=1, max_size=4, unique=True))
        ),
        freshness=Freshness(
            refresh_interval_us=draw(st.sampled_from([0, GRID_US, 7_000])),
            cache_delay_us=draw(st.sampled_from([0, GRID_US, 7_000])),
        ),
        latencies=Latencies(
            admission_us=draw(st.sampled_from([0, 0, 300, GRID_US])),
            routing_us=draw(st.sampled_from([0, 0, 300, GRID_US])),
        ),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        num_ranks=draw(st.integers(1, 3)) if has_ranks else 0,
        shares_experts=draw(st.booleans()) if has_ranks else False,
    )
