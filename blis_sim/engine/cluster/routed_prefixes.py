"""Which blocks an instance was sent lately: the router's own idea of what its KV cache may hold."""

from collections import OrderedDict

from blis_sim.engine.request import BlockIdentities

DEFAULT_CAPACITY_BLOCKS = 10_000


class RoutedPrefixes:
    """The last `capacity_blocks` blocks that were sent, the least recently sent one forgotten first.

    Blocks that no other request can have only take room, so those of a request are kept as one number.
    """

    __slots__ = ("_capacity", "_num_blocks", "_sent")

    def __init__(self, capacity_blocks: int = DEFAULT_CAPACITY_BLOCKS) -> None:
        self._capacity = capacity_blocks
        self._num_blocks = 0
        self._sent: OrderedDict[object, int] = OrderedDict()
        """The identity of a block and 1, or a request's own first block and how many follow it."""

    def __len__(self) -> int:
        return self._num_blocks

    def num_known(self, blocks: BlockIdentities, num_blocks: int) -> int:
        """How many of the first `num_blocks` blocks are among them, up to the first that is not. Changes nothing."""
        sent = self._sent
        num_shareable = min(num_blocks, blocks.num_shareable)
        for index in range(num_shareable):
            if blocks.identity(index) not in sent:
                return index
        return num_shareable

    def note(self, blocks: BlockIdentities, num_blocks: int) -> None:
        """The first `num_blocks` blocks were sent, one after the other."""
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
