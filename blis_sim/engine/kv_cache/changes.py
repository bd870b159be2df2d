"""What happens to the content of a prefix cache, for whoever keeps track of it from outside."""

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
    """Nothing can be found any more."""


CacheChange: TypeAlias = BlocksStored | BlockRemoved | AllBlocksCleared
