"""Changes of the content of a prefix cache, for a record of it outside of the engine."""

from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.request import Request


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks `first` up to, not including, `end` of `request` can be found from now on."""

    request: Request
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block is about to be overwritten: its content is gone, unless another block holds it, too."""

    identity: object


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was emptied: no block can be found any more."""


CacheChange: TypeAlias = BlocksStored | BlockRemoved | AllBlocksCleared
