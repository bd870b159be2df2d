"""Random clusters: routers, scorers, admission policies, gateways, separate pools, instances that come and go."""

from dataclasses import dataclass, replace
from random import Random

from blis_sim.engine.cluster.admission import ADMISSIONS, AdmissionPolicy, AdmissionSettings, TenantBudgets
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation import DECIDERS, DisaggregationSettings, Pools, TransferSettings
from blis_sim.engine.cluster.gateway.flow_control import FlowControl
from blis_sim.engine.cluster.gateway.rules import (
    DISPATCH_ORDERS,
    FAIRNESS,
    SATURATION_DETECTORS,
    FlowControlSettings,
    QueueLimits,
    SaturationLimits,
)
from blis_sim.engine.cluster.handover import Disaggregation
from blis_sim.engine.cluster.reporting import DecisionLog
from blis_sim.engine.cluster.routing import ROUTERS, RouterSettings
from blis_sim.engine.cluster.scorers import SCORERS, ScorerSettings
from blis_sim.engine.cluster.settings import Freshness, Latencies, SeededTieBreaker
from blis_sim.engine.core import Engine
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import DEFAULT_SLO_PRIORITIES
from workshop.attack.engine.workloads import GRID_US, Workload, draw_workload

BYTES_PER_BLOCK = 1000.0
FAULTS = ("add", "drain", "kill", "kill")


@dataclass(frozen=True, slots=True)
class ClusterWorkload:
    """A workload, and the cluster that it arrives at."""

    workload: Workload
    num_instances: int
    halved: tuple[bool, ...]
    """Whether each instance, in turn, runs half as many requests at once."""
    admission: str
    budgets: dict[str, float]
    router: str
    prefill_router: str
    weights: tuple[tuple[str, float], ...]
    freshness: Freshness
    latencies: Latencies
    keeps_decisions: bool
    faults: list[tuple[Micros, str, int]]
    gateway: FlowControlSettings | None
    pools: DisaggregationSettings | None

    def engine(self, number: int, reports_steps: bool) -> Engine:
        config = self.workload.config
        if self.halved[number % len(self.halved)]:
            config = replace(config, max_num_seqs=max(1, config.max_num_seqs // 2), async_scheduling=False)
        return Engine(config, self.workload.latency, reports_steps)

    def cluster(self, reports_steps: bool) -> Cluster:
        """The cluster, with all faults ahead of it."""
        settings = RouterSettings(
            ties=SeededTieBreaker(7),
            weights=self.weights,
            scorers=ScorerSettings(block_size_tokens=self.workload.config.block_size_tokens),
        )
        cluster = Cluster(
            [self.engine(number, reports_steps) for number in range(self.num_instances)],
            self._admission(),
            ROUTERS[self.router](settings),
            self.freshness,
            self.latencies,
            DecisionLog(2) if self.keeps_decisions else None,
        )
        if self.gateway is not None:
            FlowControl(cluster, self.gateway)
        if self.pools is not None:
            Disaggregation(cluster, self.pools, BYTES_PER_BLOCK, ROUTERS[self.prefill_router](settings))
        for at, kind, number in self.faults:
            if kind == "add":
                cluster.add_instance(self.engine(len(cluster.instances), reports_steps), at)
            elif number < len(cluster.instances):
                (cluster.drain if kind == "drain" else cluster.kill)(number, at)
        return cluster

    def _admission(self) -> AdmissionPolicy:
        admission = ADMISSIONS[self.admission](
            AdmissionSettings(token_bucket_capacity=300, token_bucket_refill_rate=5000)
        )
        if not self.budgets:
            return admission
        num_seats = self.num_instances * self.workload.config.max_num_seqs
        return TenantBudgets(admission, self.budgets, num_seats, DEFAULT_SLO_PRIORITIES)


def draw_cluster(random: Random, scheduling: str) -> ClusterWorkload:
    has_pools = random.random() < 0.4
    num_instances = random.randint(1, 5)
    names = random.sample(list(SCORERS), random.randint(1, 4))
    return ClusterWorkload(
        workload=draw_workload(random, scheduling, has_pools),
        num_instances=num_instances,
        halved=random.choice([(False,), (False, True), (True, False, False)]),
        admission=random.choice(["always-admit", "always-admit", *ADMISSIONS]),
        budgets=random.choice([{}, {}, {"t": 0.2}, {"t": 0.1, "u": 1.0}]),
        router=random.choice(["weighted", *ROUTERS]),
        prefill_router=random.choice(list(ROUTERS)),
        weights=tuple((name, random.choice([0.5, 1.0, 3.0])) for name in names),
        freshness=Freshness(
            refresh_interval_us=random.choice([0, GRID_US, 7000]), cache_delay_us=random.choice([0, GRID_US, 7000])
        ),
        latencies=Latencies(
            admission_us=random.choice([0, 0, 300, GRID_US]), routing_us=random.choice([0, 0, 300, GRID_US])
        ),
        keeps_decisions=random.random() < 0.3,
        faults=_faults(random, num_instances, has_pools),
        gateway=_gateway(random) if random.random() < 0.4 else None,
        pools=_pools(random, num_instances) if has_pools else None,
    )


def _faults(random: Random, num_instances: int, has_pools: bool) -> list[tuple[Micros, str, int]]:
    kinds = [kind for kind in FAULTS if kind != "add" or not has_pools]
    return sorted(
        (random.randint(0, 60) * GRID_US, random.choice(kinds), random.randint(0, num_instances))
        for _ in range(random.choice([0, 0, 1, 3]))
    )


def _gateway(random: Random) -> FlowControlSettings:
    return FlowControlSettings(
        dispatch_order=random.choice(list(DISPATCH_ORDERS)),
        fairness=random.choice(list(FAIRNESS)),
        saturation_detector=random.choice(["concurrency", *SATURATION_DETECTORS]),
        queue=QueueLimits(
            max_waiting=random.choice([0, 1, 3]),
            max_waiting_per_band=random.choice([0, 0, 1]),
            sheds=random.random() < 0.5,
            usage_limit=random.choice([1.0, 0.5]),
        ),
        saturation=SaturationLimits(num_waiting=1, kv_usage_fraction=0.5, max_in_flight=random.randint(1, 3)),
        slo_targets_us={"critical": 1000, "batch": 20_000},
        ttl_us=random.choice([0, 0, 1, GRID_US, 5000]),
        evicts_in_flight=random.random() < 0.5,
        tick_interval_us=random.choice([0, 300, GRID_US, 1000]),
    )


def _pools(random: Random, num_instances: int) -> DisaggregationSettings:
    num_prefill = random.randint(0, num_instances - 1)
    num_decode = random.randint(1, num_instances - num_prefill) if num_prefill else 0
    num_both = random.randint(0 if num_prefill else 1, num_instances - num_prefill - num_decode)
    return DisaggregationSettings(
        pools=Pools(num_instances, num_prefill, num_decode, num_both),
        decider=random.choice(["always", *DECIDERS]),
        threshold_tokens=random.choice([0, 3, 16]),
        transfer=TransferSettings(
            gb_per_s=random.choice([0.001, 0.01, 25.0]),
            base_latency_ms=random.choice([0.0, 0.5]),
            is_shared=random.random() < 0.5,
        ),
    )
