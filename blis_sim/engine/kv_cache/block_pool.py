"""Free KV blocks in the order of their reuse: block by block with their holders, and as counted runs."""

from collections import OrderedDict, deque
from collections.abc import Sequence


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
        """Take the next block in the order of reuse, which is then held once. The pool must not be empty."""
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


class FreeRuns:
    """The free blocks of a cache of `num_blocks`, with blocks that no lookup can find as counts.

    Order of reuse: useless ones, ones never used, then freed ones as they were freed. A block that may be found has a
    name, a positive number; how many sequences hold each named block is kept here, too. Blocks without a name are all
    alike, so of the ones that come before all named ones only the number is kept. Every call is O(1) but `take`, which
    is O(runs used up), and those with a list of names; many sequences that hold the same ones cost about 10 ns a name.
    """

    __slots__ = (
        "_freed",
        "_holders",
        "_next_name",
        "_next_run",
        "num_blocks",
        "num_changes",
        "num_free",
        "num_next",
        "references",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_changes = 0
        """Grows whenever a block may have been given back or named: while it stays, no search finds more than
        before."""
        self.references: dict[int, int] = {}
        """Number of holders of each named block, 0 while it is free. Sequences with equal blocks count as one."""
        self._holders: dict[tuple[int, ...], int] = {}
        """Number of sequences that hold each list of named blocks."""
        self.num_next = num_blocks
        """Nameless blocks that are reused before all others."""
        self._freed: OrderedDict[int, int] = OrderedDict()
        """All other free blocks: a name and 1, or a negative number and a count of nameless blocks."""
        self._next_name = 1
        self._next_run = -1

    def new_names(self, num_blocks: int, references: int) -> range:
        """Return names for `num_blocks` blocks, each held `references` times."""
        first = self._next_name
        names = range(first, first + num_blocks)
        self.num_changes += 1
        self._next_name = first + num_blocks
        self.references.update(dict.fromkeys(names, references))
        return names

    def take(self, num_blocks: int) -> Sequence[int]:
        """Take blocks, which must be free, in the order of reuse. Returns the names that are no more."""
        self.num_free -= num_blocks
        num_left = self.num_next - num_blocks
        if num_left >= 0:
            self.num_next = num_left
            return ()
        self.num_next = 0
        return self._take_freed(-num_left)

    def _take_freed(self, num_blocks: int) -> list[int]:
        """Take more blocks than those that come before all that are listed."""
        lost: list[int] = []
        popitem = self._freed.popitem
        while num_blocks > 0:
            key, count = popitem(last=False)
            if key > 0:
                del self.references[key]
                lost.append(key)
            elif count > num_blocks:
                self.num_next = count - num_blocks
                break
            num_blocks -= count
        return lost

    def take_in_turn(self, num_blocks: int) -> list[tuple[int, int]]:
        """Take blocks as `take` does. Returns each name that is no more with its turn, counted from 0."""
        nameless = min(num_blocks, self.num_next)
        self.take(nameless)
        self.num_free -= num_blocks - nameless
        lost: list[tuple[int, int]] = []
        turn = nameless
        while turn < num_blocks:
            key, count = self._freed.popitem(last=False)
            if key > 0:
                del self.references[key]
                lost.append((turn, key))
                turn += 1
            else:
                used = min(count, num_blocks - turn)
                self.num_next = count - used
                turn += used
        return lost

    def num_held(self, names: Sequence[int]) -> int:
        """Return how many of these named blocks are held."""
        if tuple(names) in self._holders:
            return len(names)
        return len(names) - list(map(self.references.__getitem__, names)).count(0)

    def hold(self, names: Sequence[int]) -> None:
        """Hold these named blocks once more."""
        together = tuple(names)
        self._holders[together] = num_holders = self._holders.get(together, 0) + 1
        if num_holders > 1:
            return
        references = self.references
        for name in names:
            if references[name] == 0:
                del self._freed[name]
                self.num_free -= 1
            references[name] += 1

    def share(self, name: int) -> None:
        """Hold a named block once more."""
        if self.references[name] == 0:
            del self._freed[name]
            self.num_free -= 1
        self.references[name] += 1

    def give_back(self, name: int) -> None:
        """Hold a named block once less; at zero it joins the end of the free blocks."""
        self.num_changes += 1
        self.references[name] = left = self.references[name] - 1
        if not left:
            self._freed[name] = 1
            self.num_free += 1

    def give_back_unnamed(self, name: int) -> None:
        """Hold a named block that cannot be found once less; at zero it is reused first."""
        self.references[name] -= 1
        if not self.references[name]:
            del self.references[name]
            self.free_useless(1)

    def give_back_all(self, names: Sequence[int], num_together: int) -> None:
        """Hold these named blocks once less, the first `num_together` of which were held by one call of `hold`.

        Blocks that no sequence holds any more are the last to be reused, the last of all first.
        """
        self.num_changes += 1
        if num_together:
            together = tuple(names[:num_together])
            self._holders[together] = num_holders = self._holders[together] - 1
            if num_holders:
                names = names[num_together:]
            else:
                del self._holders[together]
        references, freed = self.references, self._freed
        for name in reversed(names):
            references[name] = left = references[name] - 1
            if not left:
                freed[name] = 1
                self.num_free += 1

    def free(self, num_blocks: int) -> None:
        """Free nameless blocks, which are reused last."""
        num_blocks = max(num_blocks, 0)
        self.free_in_part(num_blocks, num_blocks)

    def free_named(self, num_blocks: int) -> range:
        """Free nameless blocks under new names; they are reused last, the last named first. Returns the names."""
        names = self.new_names(num_blocks, references=0)
        self._freed.update(dict.fromkeys(reversed(names), 1))
        self.num_free += num_blocks
        return names

    def free_left(self) -> int:
        """Free a nameless block, which is reused last. Returns its key, for `name_left`."""
        key = self._next_run
        self.num_changes += 1
        self._freed[key] = 1
        self._next_run = key - 1
        self.num_free += 1
        return key

    def name_left(self, keys: Sequence[int]) -> dict[int, int]:
        """Name blocks given back by `free_left` where they stand in the order of reuse, but for those reused by now."""
        present = [key for key in keys if key in self._freed]
        if not present:
            return {}
        names = dict(zip(present, self.new_names(len(present), references=0), strict=True))
        self._freed = OrderedDict((names.get(key, key), count) for key, count in self._freed.items())
        return names

    def free_in_part(self, num_findable: int, num_blocks: int) -> None:
        """Free nameless blocks, of which the first `num_findable` are reused last and the others first."""
        self.num_changes += 1
        self.num_free += num_blocks
        if num_findable > 0 and self._freed:
            self._freed[self._next_run] = num_findable
            self._next_run -= 1
            num_blocks -= num_findable
        self.num_next += num_blocks

    def free_useless(self, num_blocks: int) -> None:
        """Free blocks that no search can find: they are the first to be reused."""
        self.num_changes += 1
        self.num_next += num_blocks
        self.num_free += num_blocks

    def check(self) -> None:
        """Raise AssertionError unless the counts add up."""
        freed = sum(self._freed.values())
        assert self.num_free == self.num_next + freed
        assert 0 <= self.num_free <= self.num_blocks
