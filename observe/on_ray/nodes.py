"""The machines of a Ray cluster, and which of them send."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blis_sim.options import OptionError


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, with the CPUs that it gives to work."""

    node_id: str
    address: str
    num_cpus: int


def nodes_of_cluster() -> list[Node]:
    """The machines that are there now, in the order of their addresses."""
    import ray

    listed: Callable[[], list[dict[str, Any]]] = ray.nodes
    nodes = [
        Node(each["NodeID"], each["NodeManagerAddress"], int(each["Resources"].get("CPU", 0)))
        for each in listed()
        if each["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.address, node.node_id))


def seats(nodes: Iterable[Node], num_senders: int | None) -> Sequence[Node]:
    """The machine of each sender: so many in turn, else one per machine; each takes a CPU.

    Raises OptionError when there are not so many CPUs.
    """
    able = [node for node in nodes if node.num_cpus > 0]
    if not able:
        raise OptionError("--ray: no machine of the cluster has a CPU for a sender")
    rounds = range(max(node.num_cpus for node in able) if num_senders is not None else 1)
    found = [node for taken in rounds for node in able if node.num_cpus > taken]
    if num_senders is not None and num_senders > len(found):
        raise OptionError(f"--processes {num_senders}: the Ray cluster has {len(found)} CPUs, one per sender")
    return found[:num_senders]
