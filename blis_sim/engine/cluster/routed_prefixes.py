"""The prompt blocks lately routed to an instance: the router's own estimate of the content of its KV cache."""

from collections import OrderedDict

from blis_sim.engine.request import BlockIdentities

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

    def num_known(self, blocks: BlockIdentities, num_blocks: int) -> int:
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
