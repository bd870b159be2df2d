"""The Ray cluster that a command works on: connecting, starting one on this machine, and the nodes that send."""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from socket import create_connection
from typing import Any

from blis_sim.options import OptionError

_MOST_CONNECT_S = 10.0


@contextmanager
def ray_cluster(address: str | None, packages: Sequence[str], num_cpus: int | None = None) -> Iterator[None]:
    """While open, calls go to the cluster at this address, which gets these packages of ours.

    What Ray prints on its own goes to standard error, as standard output is kept for results.
    Without an address it is one of its own on this machine, with `num_cpus` if given, else its cores. Raises
    OptionError when there is no such cluster, or it does not take this client.
    """
    import ray

    with redirect_stdout(sys.stderr):
        _connect(address, packages, num_cpus)
        try:
            yield
        finally:
            ray.shutdown()


def _connect(address: str | None, packages: Sequence[str], num_cpus: int | None) -> None:
    import ray

    if address is not None:
        _check_port_is_open(address)
    paths = [str(Path(import_module(name).__path__[0])) for name in packages]
    try:
        ray.init(
            address=address or "local",
            num_cpus=None if address else num_cpus,
            runtime_env={"py_modules": paths},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        asked = "--ray" if address is None else f"--ray-address {address}"
        raise OptionError(f"{asked}: {' '.join(str(error).split())}") from error


def _check_port_is_open(address: str) -> None:
    """Raise OptionError when no server listens on an address; Ray itself would retry for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        create_connection((host.strip("[]"), int(port)), _MOST_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise OptionError(f"--ray-address {address}: {reason}") from error


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
