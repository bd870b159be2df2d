"""The autoscaler of a cluster: nodes with their GPUs, and periodic decisions of an analyzer and an optimizer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.event_queue import ClusterEventKind
from blis_sim.engine.cluster.gateway import FlowControl
from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.cluster.settings import LONGEST_DELAY_S
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup
from blis_sim.engine.draws import standard_normal
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros
from blis_sim.options.addition import sequential_sum

# Decisions of an autoscaler: an analyzer finds the need, an optimizer picks a change, stabilization windows delay it.
#
# A new analyzer is one function and one row of `ANALYZERS`; a new optimizer, one function and one row of
# `OPTIMIZERS`.


@dataclass(frozen=True, slots=True)
class ReplicaMetrics:
    """One instance that serves requests. Tokens are those of its KV cache."""

    instance: int
    variant: str
    """The kind of hardware: instances of one variant are alike."""
    capacity_tokens: int
    tokens_in_use: int
    num_waiting: int
    num_running: int = 0


@dataclass(frozen=True, slots=True)
class VariantMetrics:
    """All instances that run on one kind of hardware."""

    name: str
    capacity_tokens: int
    """Tokens in the KV cache of one instance."""
    cost_per_hour: float
    num_pending: int = 0
    """Instances that are loading."""


@dataclass(frozen=True, slots=True)
class AutoscalerMetrics:
    """All figures collected at one tick."""

    replicas: Sequence[ReplicaMetrics]
    variants: Sequence[VariantMetrics]
    num_queued: int = 0
    """Requests that wait at the gateway."""

    def num_replicas(self, variant: str) -> int:
        """Instances of a variant that serve requests."""
        return sum(replica.variant == variant for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class CapacityNeed:
    """Tokens of usable capacity that are missing, or that could be spared. At most one of the two is set."""

    missing_tokens: float = 0.0
    spare_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Instances to add to one variant; a negative number removes instances."""

    variant: str
    num_instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Normally distributed seconds, never below 0. Raises EngineError for figures below 0 or above a day."""

    mean: float = 0.0
    stddev: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "stddev"):
            if not 0 <= (value := getattr(self, name)) <= LONGEST_DELAY_S:
                raise EngineError(f"the {name} of a delay must be from 0 to {LONGEST_DELAY_S:g} seconds, got {value}")

    def draw(self, number: int) -> Micros:
        """Return the delay of draw `number`."""
        seconds = self.mean + self.stddev * standard_normal(number) if self.stddev else self.mean
        return round(max(0.0, seconds) * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Target utilization of KV caches. Raises EngineError for thresholds that would never settle."""

    kv_usage: float = 0.8
    """Share of a KV cache that counts as capacity."""
    scale_up: float = 0.8
    """Share of capacity in use above which capacity is missing."""
    scale_down: float = 0.4
    """Share of capacity in use below which capacity can be spared."""
    tokens_per_request: int = 512
    """Tokens that each waiting request is expected to need."""

    def __post_init__(self) -> None:
        for name in ("kv_usage", "scale_up", "scale_down"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise EngineError(f"{name} must be above 0 and at most 1, got {value}")
        if self.scale_down >= self.scale_up:
            raise EngineError(f"scale_down must be below scale_up ({self.scale_up}), got {self.scale_down}")
        if self.tokens_per_request < 1:
            raise EngineError(f"tokens_per_request must be at least 1, got {self.tokens_per_request}")


Analyzer: TypeAlias = Callable[[AutoscalerMetrics, Thresholds], CapacityNeed]


def kv_tokens(metrics: AutoscalerMetrics, thresholds: Thresholds) -> CapacityNeed:
    """Compare usable KV cache capacity with the tokens in caches and the tokens that waiting requests will need.

    Capacity is spared only if enough remains after the largest instance leaves. The formulas are BLIS's.
    """
    supplies = [replica.capacity_tokens * thresholds.kv_usage for replica in metrics.replicas]
    supply = sequential_sum(supplies)
    demand = sequential_sum(
        replica.tokens_in_use + replica.num_waiting * thresholds.tokens_per_request for replica in metrics.replicas
    )
    pending = sum(variant.num_pending * variant.capacity_tokens for variant in metrics.variants) * thresholds.kv_usage
    missing = demand / thresholds.scale_up - supply - pending
    if missing > 0:
        return CapacityNeed(missing_tokens=missing)
    enough = demand / thresholds.scale_down
    if len(supplies) > 1 and supply > enough and supply - max(supplies) > enough:
        return CapacityNeed(spare_tokens=supply - enough)
    return CapacityNeed()


ANALYZERS: dict[str, Analyzer] = {
    "kv-tokens": kv_tokens,
}
"""Name to analyzer."""


Optimizer: TypeAlias = Callable[[AutoscalerMetrics, CapacityNeed, Thresholds], ScalingDecision | None]


def unlimited(metrics: AutoscalerMetrics, need: CapacityNeed, thresholds: Thresholds) -> ScalingDecision | None:
    """Add instances of the cheapest variant, remove instances of the most expensive one; at least one stays.

    The number of free GPUs is ignored.
    """
    if need.missing_tokens > 0:
        if not metrics.variants:
            return None
        cheapest = min(metrics.variants, key=lambda variant: (variant.cost_per_hour, variant.name))
        return ScalingDecision(
            cheapest.name, math.ceil(need.missing_tokens / (cheapest.capacity_tokens * thresholds.kv_usage))
        )
    present = [variant for variant in metrics.variants if metrics.num_replicas(variant.name)]
    if need.spare_tokens <= 0 or not present:
        return None
    dearest = min(present, key=lambda variant: (-variant.cost_per_hour, variant.name))
    num_spare = math.floor(need.spare_tokens / (dearest.capacity_tokens * thresholds.kv_usage))
    most = min(metrics.num_replicas(dearest.name), len(metrics.replicas) - 1)
    return ScalingDecision(dearest.name, -min(max(1, num_spare), most)) if most else None


OPTIMIZERS: dict[str, Optimizer] = {
    "unlimited": unlimited,
}
"""Name to optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilizationWindows:
    """Stabilization windows: how long a decision must hold before it takes effect. Raises EngineError below 0."""

    scale_up_us: Micros = 0
    scale_down_us: Micros = 0

    def __post_init__(self) -> None:
        for name in ("scale_up_us", "scale_down_us"):
            if (value := getattr(self, name)) < 0:
                raise EngineError(f"the stabilization window {name} must be at least 0, got {value}")


class Stabilizer:
    """Lets a change pass once its direction has held at every tick of its window; then the window starts again."""

    __slots__ = ("_direction", "_since", "_windows")

    def __init__(self, windows: StabilizationWindows) -> None:
        self._windows = windows
        self._direction = 0
        self._since: Micros = 0

    def takes_effect(self, decision: ScalingDecision | None, at: Micros) -> bool:
        """Whether the change of this tick takes effect."""
        direction = 0 if decision is None else (decision.num_instances > 0) - (decision.num_instances < 0)
        if direction != self._direction:
            self._direction, self._since = direction, at
        if not direction:
            return False
        window_us = self._windows.scale_up_us if direction > 0 else self._windows.scale_down_us
        if at - self._since < window_us:
            return False
        self._direction = 0
        return True


MIN_INTERVAL_US: Micros = 100
"""A decision takes some 20 us of processor time, so shorter intervals would take minutes for each simulated second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """The interval of an autoscaler and the parts of its pipeline. Raises EngineError for values out of bounds."""

    interval_us: Micros = 0
    """Time between decisions; 0 for an autoscaler that decides nothing."""
    scrape_delay: Delay = field(default_factory=Delay)
    """Time from collecting the figures to acting on them."""
    windows: StabilizationWindows = field(default_factory=StabilizationWindows)
    thresholds: Thresholds = field(default_factory=Thresholds)
    analyzer: str = "kv-tokens"
    optimizer: str = "unlimited"
    keeps_number: bool = field(default=False, init=False)
    """BLIS replaces no killed instance by itself."""
    wakes: bool = field(default=False, init=False)
    """BLIS starts no instance where there is none."""

    def new_pipeline(self) -> "AutoscalerPipeline":
        """The decisions from the beginning."""
        return AutoscalerPipeline(self)

    def __post_init__(self) -> None:
        if self.interval_us and self.interval_us < MIN_INTERVAL_US:
            raise EngineError(
                f"interval_us of the autoscaler must be at least {MIN_INTERVAL_US}, got {self.interval_us}"
            )
        for name, known in (("analyzer", ANALYZERS), ("optimizer", OPTIMIZERS)):
            if (value := getattr(self, name)) not in known:
                raise EngineError(f"{name} of the autoscaler must be one of {', '.join(known)}, got {value!r}")


class AutoscalerPipeline:
    """Analyzer, optimizer and stabilization windows in a row. Its only state is the direction of earlier ticks."""

    __slots__ = ("_settings", "_stabilizer")

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._settings = settings
        self._stabilizer = Stabilizer(settings.windows)

    def decide(self, metrics: AutoscalerMetrics, at: Micros) -> ScalingDecision | None:
        """Return the change to make at this tick; None for no change."""
        settings = self._settings
        need = ANALYZERS[settings.analyzer](metrics, settings.thresholds)
        decision = OPTIMIZERS[settings.optimizer](metrics, need, settings.thresholds)
        return decision if self._stabilizer.takes_effect(decision, at) else None


class Decisions(Protocol):
    """The decisions of an autoscaler, one after the other."""

    def decide(self, metrics: AutoscalerMetrics, at: Micros) -> ScalingDecision | None:
        """Return the change to make at this tick; None for no change."""


class ScalingSettings(Protocol):
    """The rules of an autoscaler, as far as it needs to know these."""

    @property
    def interval_us(self) -> Micros:
        """Time between decisions; 0 for an autoscaler that decides nothing."""

    @property
    def scrape_delay(self) -> Delay:
        """Time from collecting the figures to acting on them."""

    @property
    def keeps_number(self) -> bool:
        """Whether a killed instance is replaced at once; instances that were added last are then drained first."""

    @property
    def wakes(self) -> bool:
        """Whether an instance is started where there is none, so that requests may wait at the gateway."""

    def new_pipeline(self) -> Decisions:
        """The decisions from the beginning."""


# The autoscaler of a cluster at work: nodes with their GPUs, the instances on them, and the periodic decision.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Nodes of one kind. Raises EngineError for figures out of bounds."""

    name: str
    gpu_type: str
    gpus_per_node: int
    initial_nodes: int
    min_nodes: int = 0
    """Nodes that are kept even without instances on them."""
    max_nodes: int | None = None
    """Most nodes: more than the initial ones are bought when they are needed. None buys none."""
    provisioning: Delay = field(default_factory=Delay)
    """Time from buying a node until instances load on it."""
    gpu_memory_gib: float = 0.0
    """Memory of one GPU; 0 takes the catalogue's figure."""
    cost_per_hour: float = 0.0
    """Cost of one node."""

    def __post_init__(self) -> None:
        where = f"node pool {self.name!r}"
        if not self.name or not self.gpu_type:
            raise EngineError(f"{where} needs a name and a gpu_type")
        least = {"gpus_per_node": 1, "initial_nodes": 0, "min_nodes": 0, "gpu_memory_gib": 0, "cost_per_hour": 0}
        for name, bound in least.items():
            if not (value := getattr(self, name)) >= bound:
                raise EngineError(f"{name} of {where} must be at least {bound}, got {value}")
        for name in ("initial_nodes", "min_nodes"):
            if self.max_nodes is not None and (value := getattr(self, name)) > self.max_nodes:
                raise EngineError(f"{name} of {where} must be at most max_nodes ({self.max_nodes}), got {value}")

    @property
    def most_nodes(self) -> int:
        """The most nodes that the pool can have at a time."""
        return self.initial_nodes if self.max_nodes is None else self.max_nodes


@dataclass(slots=True, eq=False)
class Node:
    """One node with its free GPUs, from when it is bought until it is given back."""

    pool: NodePool
    num_free_gpus: int
    bought_at: Micros = 0
    ready_at: Micros = 0
    """Instant from which instances load on the node."""
    given_back_at: Micros | None = None


class Nodes:
    """All nodes of all pools. An instance takes GPUs of the first node that has enough."""

    __slots__ = ("_emptied", "_nodes", "_num_of_pool", "bought", "initial", "pools")

    def __init__(self, pools: Sequence[NodePool]) -> None:
        names = [pool.name for pool in pools]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise EngineError(f"node pools must have different names, {repeated!r} is used twice")
        self.pools = tuple(pools)
        self.initial = [Node(pool, pool.gpus_per_node) for pool in pools for _ in range(pool.initial_nodes)]
        self.bought: list[Node] = []
        """All nodes that were ever bought, also those given back."""
        self._nodes = list(self.initial)
        self._num_of_pool = {pool.name: pool.initial_nodes for pool in pools}
        self._emptied: list[Node] = []
        """Nodes whose last instance has left, since `give_back_empty`."""

    def place(self, num_gpus: int, pool_name: str | None = None) -> Node | None:
        """Take `num_gpus` of one node, in one pool or in any; None, and nothing taken, if no node has enough."""
        for node in self._nodes:
            if pool_name in (None, node.pool.name) and node.num_free_gpus >= num_gpus:
                node.num_free_gpus -= num_gpus
                return node
        return None

    def buy(self, num_gpus: int, pool_name: str, at: Micros) -> Node | None:
        """Buy a node of a pool and take `num_gpus` of it; None if the pool is full or its nodes are too small."""
        pool = next(pool for pool in self.pools if pool.name == pool_name)
        if self._num_of_pool[pool.name] >= pool.most_nodes or num_gpus > pool.gpus_per_node:
            return None
        ready_at = at + pool.provisioning.draw(_FIRST_PROVISIONING_DRAW + len(self.bought))
        node = Node(pool, pool.gpus_per_node - num_gpus, at, ready_at)
        self._num_of_pool[pool.name] += 1
        self._nodes.append(node)
        self.bought.append(node)
        return node

    def free(self, node: Node, num_gpus: int) -> None:
        """Free the GPUs of an instance that was removed."""
        node.num_free_gpus += num_gpus
        assert node.num_free_gpus <= node.pool.gpus_per_node
        if node.num_free_gpus == node.pool.gpus_per_node:
            self._emptied.append(node)

    def give_back_empty(self, at: Micros) -> None:
        """Give back the nodes whose last instance has left, down to `min_nodes` of each pool."""
        emptied, self._emptied = self._emptied, []
        for node in emptied:
            pool = node.pool
            is_empty = node.num_free_gpus == pool.gpus_per_node and node.given_back_at is None
            if is_empty and self._num_of_pool[pool.name] > pool.min_nodes:
                node.given_back_at = at
                self._num_of_pool[pool.name] -= 1
                self._nodes.remove(node)


_FIRST_PROVISIONING_DRAW = 1 << 32
"""Number of the first delay drawn for a node, so that nodes and instances have draws of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceResources:
    """Nodes, the GPUs that each instance takes, and the engine configuration of each pool."""

    nodes: Nodes
    gpus_per_instance: int
    configs: Mapping[str, EngineConfig]
    """Engine configurations by pool name."""
    new_engine: Callable[[NodePool], Engine | RankGroup]
    loading: Delay = field(default_factory=Delay)


class Fleet:
    """Starts instances on nodes with free GPUs, buys nodes, and drains instances. Each node pool is a variant."""

    def __init__(self, cluster: Cluster, resources: InstanceResources) -> None:
        self.num_started = 0
        self._cluster = cluster
        self._resources = resources
        self._node_of: dict[int, Node] = {}
        """The node of each instance that still holds GPUs, by instance number."""

    def place_first(self, number: int, node: Node, is_warm: bool) -> None:
        """Record the node of an initial instance; unless it is warm, the instance loads first."""
        self._node_of[number] = node
        if not is_warm:
            self._cluster.mark_loading(number, 0)
            self._load(number, 0)

    @property
    def nodes(self) -> Nodes:
        """All nodes, with their instances or without."""
        return self._resources.nodes

    def start(self, pool_name: str, at: Micros) -> bool:
        """Start one more instance in the pool, on a node that is bought if no other has room. False without room."""
        self._free_gpus_of_drained()
        resources = self._resources
        num_gpus = resources.gpus_per_instance
        node = resources.nodes.place(num_gpus, pool_name) or resources.nodes.buy(num_gpus, pool_name, at)
        if node is None:
            return False
        number = self._cluster.members.add(resources.new_engine(node.pool), InstanceState.LOADING, at)
        self._node_of[number] = node
        self._cluster.mark_loading(number, at)
        self._load(number, max(at, node.ready_at))
        return True

    def give_back_nodes(self, at: Micros) -> None:
        """Give back the nodes on which no instance is left."""
        self._free_gpus_of_drained()
        self._resources.nodes.give_back_empty(at)

    def drain(self, pool_name: str, at: Micros) -> bool:
        """Drain the instance of the pool whose name comes first. False if none serves."""
        members = self._cluster.members
        serving = self._in_state(pool_name, InstanceState.READY)
        if not serving:
            return False
        self._cluster.drain_now(min(serving, key=lambda number: members[number].snapshot.name), at)
        return True

    def drain_youngest(self, pool_name: str, at: Micros) -> bool:
        """Drain an instance as a ReplicaSet does: one that loads before one that serves, and the latest first."""
        for state in (InstanceState.LOADING, InstanceState.READY):
            if found := self._in_state(pool_name, state):
                self._cluster.drain_now(max(found), at)
                return True
        return False

    def variant_of(self, number: int) -> str:
        """Return the pool of an instance."""
        return self._node_of[number].pool.name

    def variants(self) -> list[VariantMetrics]:
        """Return the figures of all pools that can have nodes."""
        found = []
        for pool in self._resources.nodes.pools:
            if not pool.most_nodes:
                continue
            config = self._resources.configs[pool.name]
            pending = self._in_state(pool.name, InstanceState.LOADING)
            found.append(
                VariantMetrics(
                    pool.name,
                    config.kv_size_tokens,
                    pool.cost_per_hour * self._resources.gpus_per_instance / pool.gpus_per_node,
                    len(pending),
                )
            )
        return found

    def _in_state(self, pool_name: str, state: InstanceState) -> list[int]:
        """Return the instances of a pool that are in state `state`."""
        members = self._cluster.members
        of_pool = [number for number, node in self._node_of.items() if node.pool.name == pool_name]
        return [number for number in of_pool if number in members and members[number].state is state]

    def _load(self, number: int, at: Micros) -> None:
        loading_us = self._resources.loading.draw(self.num_started)
        self.num_started += 1
        self._cluster.num_starting += 1
        self._cluster.event_queue.add(at + loading_us, ClusterEventKind.INSTANCE_READY, self._loaded, number)

    def _loaded(self, number: int, at: Micros) -> None:
        self._cluster.num_starting -= 1
        self._cluster.mark_ready(number, at)

    def _free_gpus_of_drained(self) -> None:
        """Give back the GPUs of drained instances without unfinished requests."""
        members = self._cluster.members
        for number, node in list(self._node_of.items()):
            member = members.get(number)
            if member is None or (member.state in _LEAVING and not member.engine.live):
                self._resources.nodes.free(node, self._resources.gpus_per_instance)
                del self._node_of[number]


_LEAVING = (InstanceState.DRAINING, InstanceState.KILLED)


@dataclass(frozen=True, slots=True)
class ScalingAction:
    """One action of the autoscaler: `num_instances` was the decision, `num_done` what free and new GPUs allowed."""

    at: Micros
    variant: str
    num_instances: int
    num_done: int


class Autoscaler:
    """Decides at every tick, from the first instant on, whether to add or drain instances of `cluster`.

    Its ticks do not keep a simulation running that has no other events left.
    """

    def __init__(self, cluster: Cluster, settings: ScalingSettings, fleet: Fleet) -> None:
        self.scalings: list[ScalingAction] = []
        self._cluster = cluster
        self._settings = settings
        self._fleet = fleet
        self._pipeline = settings.new_pipeline()
        self._num_decisions = 0
        cluster.add_part(self)
        cluster.wakes = settings.wakes
        cluster.killed.append(self._replace)
        cluster.add_background(0, ClusterEventKind.SCALING, self._tick)

    @property
    def nodes(self) -> Nodes:
        """The nodes of the instances."""
        return self._fleet.nodes

    def _tick(self, at: Micros) -> None:
        self._cluster.refresh_snapshots(at)
        self._fleet.give_back_nodes(at)
        change = self._pipeline.decide(self._collect(), at)
        if change is not None:
            delay_us = self._settings.scrape_delay.draw(self._num_decisions)
            self._num_decisions += 1
            self._cluster.event_queue.add(at + delay_us, ClusterEventKind.SCALE_ACTUATION, self._act, change)
        self._cluster.add_background(at + self._settings.interval_us, ClusterEventKind.SCALING, self._tick)

    def _collect(self) -> AutoscalerMetrics:
        """Return the figures of all serving instances, as fresh as a router's."""
        replicas = []
        for snapshot in self._cluster.state.candidates:
            config = self._cluster.members[snapshot.instance].engine.config
            capacity = config.kv_size_tokens
            in_use = round(snapshot.kv_usage_fraction * capacity)
            variant = self._fleet.variant_of(snapshot.instance)
            replicas.append(
                ReplicaMetrics(snapshot.instance, variant, capacity, in_use, snapshot.num_waiting, snapshot.num_running)
            )
        gateway = self._cluster.part(FlowControl)
        return AutoscalerMetrics(replicas, self._fleet.variants(), 0 if gateway is None else gateway.num_waiting)

    def _replace(self, number: int, at: Micros) -> None:
        """Start an instance in place of one that was killed, where the rules keep their number."""
        if self._settings.keeps_number:
            variant = self._fleet.variant_of(number)
            self.scalings.append(ScalingAction(at, variant, 1, int(self._fleet.start(variant, at))))

    def _act(self, change: object, at: Micros) -> None:
        assert isinstance(change, ScalingDecision)
        drain = self._fleet.drain_youngest if self._settings.keeps_number else self._fleet.drain
        act = self._fleet.start if change.num_instances > 0 else drain
        num_done = 0
        while num_done < abs(change.num_instances) and act(change.variant, at):
            num_done += 1
        sign = 1 if change.num_instances > 0 else -1
        self.scalings.append(ScalingAction(at, change.variant, change.num_instances, sign * num_done))
