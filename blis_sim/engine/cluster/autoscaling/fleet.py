"""The instances of a cluster on machines: which runs where, which is being loaded, which is on its way out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from blis_sim.engine.cluster.agenda import ClusterDue
from blis_sim.engine.cluster.autoscaling.delays import Delay
from blis_sim.engine.cluster.autoscaling.figures import VariantFigures
from blis_sim.engine.cluster.autoscaling.nodes import Node, NodePool, Nodes
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.member import Life
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What instances are made of: machines, GPUs for each, and engines by the pool they run in."""

    nodes: Nodes
    gpus_per_instance: int
    configs: Mapping[str, EngineConfig]
    """By the name of the pool."""
    new_engine: Callable[[NodePool], Engine]
    loading: Delay = field(default_factory=Delay)


class Fleet:
    """Starts instances where there is room and takes them away. Each pool of machines is a variant of its own."""

    def __init__(self, cluster: Cluster, machinery: Machinery) -> None:
        self.num_started = 0
        self._cluster = cluster
        self._machinery = machinery
        self._node_of: dict[int, Node] = {}
        """Where each instance runs that is not gone, by number."""

    def place_first(self, number: int, node: Node, is_warm: bool) -> None:
        """One of the first instances, which has been placed."""
        self._node_of[number] = node
        if not is_warm:
            self._cluster.members[number].life = Life.LOADING
            self._cluster.state.change()
            self._load(number, 0)

    def start(self, pool_name: str, at: Micros) -> bool:
        """One more instance in that pool. False without room."""
        self._let_go_of_drained()
        machinery = self._machinery
        node = machinery.nodes.place(machinery.gpus_per_instance, pool_name)
        if node is None:
            return False
        number = self._cluster.members.add(machinery.new_engine(node.pool), Life.LOADING, at)
        self._node_of[number] = node
        self._load(number, at)
        return True

    def drain(self, pool_name: str, _at: Micros) -> bool:
        """The instance of that pool whose name comes first takes no more requests. False without one."""
        members = self._cluster.members
        serving = self._with_life(pool_name, Life.READY)
        if not serving:
            return False
        self._cluster.drain_now(min(serving, key=lambda number: members[number].snapshot.name))
        return True

    def variant_of(self, number: int) -> str:
        """The pool in which an instance runs."""
        return self._node_of[number].pool.name

    def variants(self) -> list[VariantFigures]:
        """All pools that have machines."""
        found = []
        for pool in self._machinery.nodes.pools:
            if not pool.initial_nodes:
                continue
            config = self._machinery.configs[pool.name]
            pending = self._with_life(pool.name, Life.LOADING)
            found.append(
                VariantFigures(
                    pool.name,
                    config.total_kv_blocks * config.block_size_tokens,
                    pool.cost_per_hour * self._machinery.gpus_per_instance / pool.gpus_per_node,
                    len(pending),
                )
            )
        return found

    def _with_life(self, pool_name: str, life: Life) -> list[int]:
        """Instances of a pool that are in this state."""
        members = self._cluster.members
        of_pool = [number for number, node in self._node_of.items() if node.pool.name == pool_name]
        return [number for number in of_pool if number in members and members[number].life is life]

    def _load(self, number: int, at: Micros) -> None:
        loading_us = self._machinery.loading.draw(self.num_started)
        self.num_started += 1
        self._cluster.num_starting += 1
        self._cluster.agenda.add(at + loading_us, ClusterDue.INSTANCE_READY, self._loaded, number)

    def _loaded(self, number: int, _at: Micros) -> None:
        self._cluster.num_starting -= 1
        self._cluster.serve_from_now(number)

    def _let_go_of_drained(self) -> None:
        """Those that have nothing left to do free their GPUs."""
        members = self._cluster.members
        for number, node in list(self._node_of.items()):
            member = members.get(number)
            if member is None or (member.life is Life.DRAINING and not member.engine.live):
                self._machinery.nodes.give_back(node, self._machinery.gpus_per_instance)
                del self._node_of[number]
