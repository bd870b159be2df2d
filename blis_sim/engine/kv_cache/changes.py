"""Changes of the content of a prefix cache, for a record of it outside of the engine."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from blis_sim.engine.request import Request


class BlocksStored(NamedTuple):
    """Blocks of `request` between its identities `first` and, not including, `end` can be found from now on.

    Each block spans `span` identities and is found by the last one. Of a group that keeps some blocks alone, `kept`
    has the identities of the kept blocks; None stands for all blocks.
    """

    request: Request
    first: int
    end: int
    group: int = 0
    span: int = 1
    kept: tuple[int, ...] | None = None


class BlockRemoved(NamedTuple):
    """A block is about to be overwritten: its content is gone, unless another block holds it, too."""

    identity: object
    group: int = 0


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was emptied: no block can be found any more."""


class CpuBlockStored(NamedTuple):
    """A block has come to CPU memory."""

    identity: object
    group: int = 0


class DeviceBlockStored(NamedTuple):
    """A block has come to a device behind CPU memory."""

    identity: object
    group: int = 0
    locality: str = ""
    """Where the device is, as its settings say."""


class CpuBlocksRemoved(NamedTuple):
    """Blocks of one group have left CPU memory together."""

    identities: tuple[object, ...]
    group: int = 0


CacheChange: TypeAlias = (
    BlocksStored | BlockRemoved | AllBlocksCleared | CpuBlockStored | CpuBlocksRemoved | DeviceBlockStored
)
