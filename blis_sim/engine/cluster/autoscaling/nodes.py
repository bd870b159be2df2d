"""The machines there are, and which of their GPUs are taken."""

from collections.abc import Sequence
from dataclasses import dataclass

from blis_sim.engine.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """Machines that are alike. Raises EngineError for figures that cannot be."""

    name: str
    gpu_type: str
    gpus_per_node: int
    initial_nodes: int
    gpu_memory_gib: float = 0.0
    """Of one GPU; 0 takes the catalogue's."""
    cost_per_hour: float = 0.0
    """Of one node."""

    def __post_init__(self) -> None:
        where = f"node pool {self.name!r}"
        if not self.name or not self.gpu_type:
            raise EngineError(f"{where} needs a name and a gpu_type")
        for name, least in (("gpus_per_node", 1), ("initial_nodes", 0), ("gpu_memory_gib", 0), ("cost_per_hour", 0)):
            if not (value := getattr(self, name)) >= least:
                raise EngineError(f"{name} of {where} must be at least {least}, got {value}")


@dataclass(slots=True)
class Node:
    """One machine."""

    pool: NodePool
    num_free_gpus: int


class Nodes:
    """All machines of all pools. An instance takes GPUs of one machine: the first with enough."""

    __slots__ = ("_nodes", "pools")

    def __init__(self, pools: Sequence[NodePool]) -> None:
        names = [pool.name for pool in pools]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise EngineError(f"node pools must have different names, {repeated!r} is used twice")
        self.pools = tuple(pools)
        self._nodes = [Node(pool, pool.gpus_per_node) for pool in pools for _ in range(pool.initial_nodes)]

    def place(self, num_gpus: int, pool_name: str | None = None) -> Node | None:
        """Take so many GPUs for an instance, in one pool or in any; None, and nothing taken, without room."""
        for node in self._nodes:
            if pool_name in (None, node.pool.name) and node.num_free_gpus >= num_gpus:
                node.num_free_gpus -= num_gpus
                return node
        return None

    def give_back(self, node: Node, num_gpus: int) -> None:
        """An instance is gone."""
        node.num_free_gpus += num_gpus
        assert node.num_free_gpus <= node.pool.gpus_per_node
