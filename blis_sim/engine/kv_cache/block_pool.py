"""The blocks themselves: which are free, in what order they are reused, how many requests hold each."""

from collections import OrderedDict, deque


class BlockPool:
    """`num_blocks` KV blocks, numbered from 0. Free blocks are reused in the order they became free.

    Blocks never used before come first, in ascending order; they take no memory until then. Before even those come
    blocks given back to be reused first, the latest one first. Taking, sharing and giving back a block are O(1).
    """

    __slots__ = ("_first", "_freed", "_num_touched", "_references", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_touched = 0
        self._freed: OrderedDict[int, None] = OrderedDict()
        self._first: deque[int] = deque()
        self._references: list[int] = []

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._num_touched + len(self._freed) + len(self._first)

    @property
    def num_used(self) -> int:
        return self._num_touched - len(self._freed) - len(self._first)

    def is_free(self, block: int) -> bool:
        """Whether no sequence holds `block`, which must have been taken before."""
        return self._references[block] == 0

    def reusable(self) -> list[int]:
        """Free blocks that may still be found, in the order of reuse. Cost: O(free blocks used before)."""
        return list(self._freed)

    def take(self) -> int:
        """The next block in the order of reuse, now held once. The pool must not be empty."""
        if self._first:
            block = self._first.popleft()
            self._references[block] = 1
            return block
        if self._num_touched < self.num_blocks:
            block = self._num_touched
            self._num_touched += 1
            self._references.append(1)
            return block
        block, _ = self._freed.popitem(last=False)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Hold a block once more; a free one leaves the free list wherever it stands.

        Not for a block given back to be reused first: its content is unknown.
        """
        if self._references[block] == 0:
            del self._freed[block]
        self._references[block] += 1

    def give_back(self, block: int) -> None:
        """Hold a block once less; at zero it joins the end of the free list."""
        self._references[block] -= 1
        if self._references[block] == 0:
            self._freed[block] = None

    def give_back_to_reuse_first(self, block: int) -> None:
        """Give back the only hold of a block whose content is of no use: it goes to the front of the free list."""
        self._references[block] = 0
        self._first.appendleft(block)

    def check(self) -> None:
        """Raise AssertionError unless every block is either free and unreferenced or held."""
        assert self.num_used + self.num_free == self.num_blocks
        first = set(self._first)
        for block, references in enumerate(self._references):
            free = block in self._freed or block in first
            assert (references == 0) == free, f"block {block} has {references} references"
            assert references >= 0, f"block {block} has {references} references"
