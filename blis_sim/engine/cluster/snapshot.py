"""A router's view of one instance: figures of the latest report, its own count of requests, prompts lately routed."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.core import Engine
    from blis_sim.engine.data_parallel import RankGroup


class Snapshot:
    """Figures of one instance. Before the first report all are zero.

    All but `num_in_flight` are as old as the latest report. Routers and admission policies only read them.
    """

    __slots__ = (
        "adapters",
        "instance",
        "kv_usage_fraction",
        "name",
        "num_in_flight",
        "num_running",
        "num_waiting",
        "seen_at",
    )

    def __init__(self, instance: int, seen_at: Micros = 0) -> None:
        self.instance = instance
        self.name = instance_name(instance)
        self.seen_at = seen_at
        """Instant of the latest report."""
        self.num_waiting = 0
        self.num_running = 0
        self.kv_usage_fraction = 0.0
        self.adapters: frozenset[str] = frozenset()
        """LoRA adapters of the instance's requests."""
        self.num_in_flight = 0
        """Unfinished requests routed to the instance. The router counts these itself, so the figure is current."""

    @property
    def load(self) -> int:
        """BLIS's effective load. A waiting or running request is in flight as well, and so counts twice."""
        return self.num_waiting + self.num_running + self.num_in_flight

    def report(self, engine: "Engine | RankGroup", now: Micros) -> None:
        """Take over the current figures of the instance."""
        stats = engine.stats
        self.seen_at = now
        self.num_waiting = stats.num_waiting
        self.num_running = stats.num_running
        self.kv_usage_fraction = stats.kv_usage_fraction

    def report_adapters(self, engine: "Engine | RankGroup") -> None:
        """Take over the adapters of the instance's requests. Cost: O(requests there)."""
        self.adapters = frozenset(each.request.adapter for each in engine.live.values() if each.request.adapter)


def instance_name(number: int) -> str:
    """Return the name of an instance in reports."""
    return f"instance_{number}"


DEFAULT_CAPACITY_BLOCKS = 10_000


class RoutedPrefixes:
    """The last `capacity_blocks` routed blocks; the least recently routed block is dropped first.

    Blocks that no other request can share only take up capacity, so a request's own blocks are kept as one number.
    """

    __slots__ = ("_capacity", "_num_blocks", "_sent")

    def __init__(self, capacity_blocks: int = DEFAULT_CAPACITY_BLOCKS) -> None:
        self._capacity = capacity_blocks
        self._num_blocks = 0
        self._sent: OrderedDict[object, int] = OrderedDict()
        """Identity of a block to 1, or identity of a request's first own block to the number of its own blocks."""

    def __len__(self) -> int:
        return self._num_blocks

    def num_routed(self, blocks: BlockIdentities, num_blocks: int) -> int:
        """Return the number of leading blocks, of the first `num_blocks`, that were routed. Changes nothing."""
        sent = self._sent
        num_shareable = min(num_blocks, blocks.num_shareable)
        for index in range(num_shareable):
            if blocks.identity(index) not in sent:
                return index
        return num_shareable

    def note(self, blocks: BlockIdentities, num_blocks: int) -> None:
        """Record that the first `num_blocks` blocks were routed, in order."""
        sent = self._sent
        num_shareable = min(num_blocks, blocks.num_shareable)
        for index in range(num_shareable):
            identity = blocks.identity(index)
            if identity in sent:
                sent.move_to_end(identity)
            else:
                sent[identity] = 1
                self._num_blocks += 1
        if num_blocks > num_shareable:
            self._note_own(blocks.identity(num_shareable), num_blocks - num_shareable)
        while self._num_blocks > self._capacity:
            self._forget_some()

    def _note_own(self, first: object, num_blocks: int) -> None:
        self._num_blocks += num_blocks - self._sent.pop(first, 0)
        self._sent[first] = num_blocks

    def _forget_some(self) -> None:
        identity, count = self._sent.popitem(last=False)
        forgotten = min(count, self._num_blocks - self._capacity)
        self._num_blocks -= forgotten
        if count > forgotten:
            self._sent[identity] = count - forgotten
            self._sent.move_to_end(identity, last=False)
