"""A request with its arrival, and the KV blocks of prompts that continue earlier prompts and replies."""

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from traces import TraceRow

if TYPE_CHECKING:
    from traces.workload import WorkloadRequest  # a replay does not wait for the generators to be loaded


class ConversationBlocks(NamedTuple):
    """A request whose prompt begins with earlier prompts and replies, or whose reply is part of a later prompt.

    Blocks below `ends[i]`, from `ends[i - 1]` on, hold the text of `owners[i]`: an earlier request, or all that is said
    in a session. The first `shared_blocks` are those of `group`. `num_shareable` counts the full blocks of prompt and
    reply without the last token, which is sampled but never computed.
    """

    request_id: str
    num_shareable: int
    owners: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    group: str = ""
    shared_blocks: int = 0

    def identity(self, index: int) -> object:
        if index < self.shared_blocks:
            return (0, self.group, index)
        place = bisect_right(self.ends, index)
        return (self.owners[place] if place < len(self.owners) else self.request_id, index)

    def first(self, num_blocks: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Owners and ends of these blocks alone, for a prompt that begins with them."""
        owners: list[str] = []
        ends: list[int] = []
        for owner, end in zip((*self.owners, self.request_id), (*self.ends, num_blocks), strict=True):
            if not ends or ends[-1] < num_blocks:
                owners.append(owner)
                ends.append(min(end, num_blocks))
        return tuple(owners), tuple(ends)


Origin: TypeAlias = Union[TraceRow, "WorkloadRequest"]
"""The row or generated request that an arrival is made from; both have fields of equal names for its labels."""


class Arrival(NamedTuple):
    """An arriving request: its instant, the request for the engine, and its origin."""

    at: Micros
    request: Request
    row: Origin
