"""The interface between collectives and the models of their times."""

from enum import StrEnum
from typing import Protocol


class Collective(StrEnum):
    """Exchanges among a group of GPUs, by the names that busbw.yaml and workload files have for them."""

    ALL_REDUCE = "allreduce"
    ALL_GATHER = "allgather"
    REDUCE_SCATTER = "reducescatter"
    ALL_TO_ALL = "alltoall"


class Group(StrEnum):
    """Why GPUs form a group, which decides where they are."""

    TP = "TP"
    EP = "EP"
    DP = "DP"
    DP_EP = "DP_EP"


class Network(Protocol):
    """A source of times of collectives."""

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        """Return the time of one collective among `num_gpus`. Raises EngineError when it cannot be known."""
        ...


def moved_share(collective: Collective, num_gpus: int) -> float:
    """Return how many times its size a collective moves over the bus."""
    share = (num_gpus - 1) / num_gpus
    return 2 * share if collective is Collective.ALL_REDUCE else share
