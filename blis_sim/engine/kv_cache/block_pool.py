"""The interfaces of KV caches, free KV blocks in the order of their reuse, and indexes of blocks by content."""

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, KeysView
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import BlockIdentities
from blis_sim.engine.sequence import Sequence

# Free KV blocks in the order of their reuse: block by block with their holders, and as counted runs.


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


class FreeBlockRuns:
    """The free blocks of a cache of `num_blocks`, with blocks that no lookup can find as counts.

    Order of reuse: useless ones, ones never used, then freed ones as they were freed. A block that may be found has a
    name, a positive number; how many sequences hold each named block is kept here, too. Blocks without a name are all
    alike, so of the ones that come before all named ones only the number is kept. Every call is O(1) but `take`, which
    is O(runs used up), and those with a list of names. Many sequences that hold the same ones cost about 10 ns a name.
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

    def take(self, num_blocks: int) -> SequenceOf[int]:
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

    def num_held(self, names: SequenceOf[int]) -> int:
        """Return how many of these named blocks are held."""
        if tuple(names) in self._holders:
            return len(names)
        return len(names) - list(map(self.references.__getitem__, names)).count(0)

    def hold(self, names: SequenceOf[int]) -> None:
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

    def give_back_all(self, names: SequenceOf[int], num_together: int) -> None:
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

    def name_left(self, keys: SequenceOf[int]) -> dict[int, int]:
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


# Indexes from content to the blocks that hold it, by which equal prompt beginnings become hits; reported changes.


class PrefixIndex:
    """Content identity to block and back. One block per identity: the latest registered wins."""

    __slots__ = ("_block_of", "_identity_of")

    def __init__(self) -> None:
        self._block_of: dict[object, int] = {}
        self._identity_of: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def block_of(self, identity: object) -> int | None:
        """Return the block that is found under `identity`."""
        return self._block_of.get(identity)

    def identity_of(self, block: int) -> object:
        """Return the content that `block` was last registered with; None when it holds nothing whole."""
        return self._identity_of.get(block)

    def identities_of(self, blocks: Iterable[int]) -> list[object]:
        """Return the contents of those of `blocks` that hold something whole."""
        identity_of = self._identity_of
        return [identity_of[block] for block in blocks if block in identity_of]

    def identities(self) -> KeysView[object]:
        """Return the identities of the blocks that can be found: a view, which changes with the cache."""
        return self._block_of.keys()

    def identities_now(self) -> Container[object]:
        """Return the identities of the blocks that can be found at this instant. Copying all of the map is several
        times faster than its keys alone."""
        return self._block_of.copy()

    def register(self, block: int, identity: object) -> None:
        """Register `block` as now holding the content `identity`."""
        self._block_of[identity] = block
        self._identity_of[block] = identity

    def forget(self, block: int) -> None:
        """Remove `block`, which is about to be overwritten.

        As in BLIS the identity goes with it even if another block holds the same content by now. That other block is
        then no longer found (sim/kv/cache.go deletes by hash without looking at the owner).
        """
        identity = self._identity_of.pop(block, None)
        if identity is not None:
            self._block_of.pop(identity, None)

    def forget_all(self, blocks: Iterable[int]) -> None:
        """`forget` each of `blocks`."""
        identity_of, block_of = self._identity_of, self._block_of
        for block in blocks:
            identity = identity_of.pop(block, None)
            if identity is not None:
                block_of.pop(identity, None)

    def register_all(self, blocks: range, identities: SequenceOf[object]) -> None:
        """Register each of `blocks` as now holding the content of its own among `identities`."""
        self._block_of.update(zip(identities, blocks, strict=True))
        self._identity_of.update(zip(blocks, identities, strict=True))

    def overwrite(self, blocks: range, identities: SequenceOf[object], lost: Iterable[tuple[int, int]]) -> None:
        """Register blocks one after the other, where some overwrite another: `lost` has the turn in which each block is
        forgotten."""
        gone = [(turn, self._identity_of.pop(block, None)) for turn, block in lost]
        for _, identity in gone:
            self._block_of.pop(identity, None)
        self.register_all(blocks, identities)
        for turn, identity in gone:
            if self._block_of.get(identity, blocks.stop) < blocks[turn]:
                del self._block_of[identity]  # registered in an earlier turn, and gone again in this one

    def longest_prefix(self, blocks: BlockIdentities, num_full_blocks: int) -> list[int]:
        """Return the blocks that hold the beginning of a prompt, up to the first one missing. Changes nothing."""
        found: list[int] = []
        if not self._block_of:
            return found
        for block in map(self._block_of.get, map(blocks.identity, range(num_full_blocks))):
            if block is None:
                break
            found.append(block)
        return found


MAX_CACHED_SEARCHES = 256
"""Cached results of `find_leading`."""


class ContentIndex:
    """Content identity to the blocks that hold it, the earliest registered first, and back."""

    __slots__ = ("_blocks_of", "_identity_of", "_leading")

    def __init__(self) -> None:
        self._blocks_of: dict[object, dict[int, None]] = {}
        self._identity_of: dict[int, object] = {}
        self._leading: dict[object, list[int]] = {}
        """Results of `find_leading`, by the last identity of the search, until something changes."""

    def __len__(self) -> int:
        """Return the number of blocks that can be found."""
        return len(self._identity_of)

    def identities(self) -> KeysView[object]:
        """Return the identities of the blocks that can be found: a view, which changes with the cache."""
        return self._blocks_of.keys()

    def identities_now(self) -> Container[object]:
        """Return the identities of the blocks that can be found at this instant. Copying all of the map is several
        times faster than its keys alone."""
        return self._blocks_of.copy()

    def register(self, block: int, identity: object) -> None:
        """Register `block` as holding the content `identity`, as others may."""
        self._leading.clear()
        self._blocks_of.setdefault(identity, {})[block] = None
        self._identity_of[block] = identity

    def register_all(self, blocks: Iterable[int], identities: Iterable[object]) -> None:
        """Register each of `blocks` as holding the content of its own among `identities`."""
        blocks_of, identity_of = self._blocks_of, self._identity_of
        self._leading.clear()
        for block, identity in zip(blocks, identities, strict=True):
            identity_of[block] = identity
            if identity in blocks_of:
                blocks_of[identity][block] = None
            else:
                blocks_of[identity] = {block: None}

    def forget(self, block: int) -> object | None:
        """Remove `block`, which is about to be overwritten; others with the same content stay findable.

        Returns what it held, None if it could not be found.
        """
        identity = self._identity_of.pop(block, None)
        if identity is not None:
            self._leading.clear()
            blocks = self._blocks_of[identity]
            del blocks[block]
            if not blocks:
                del self._blocks_of[identity]
        return identity

    def find(self, identity: object) -> int | None:
        """Return the block registered the longest ago with this content."""
        blocks = self._blocks_of.get(identity)
        return None if blocks is None else next(iter(blocks))

    def find_all(self, identities: Iterable[object]) -> list[int]:
        """`find` for each of `identities`, up to the first whose content no block holds."""
        found: list[int] = []
        for block in map(self.find, identities):
            if block is None:
                break
            found.append(block)
        return found

    def find_leading(self, blocks: BlockIdentities, num_blocks: int) -> list[int]:
        """`find_all` for the first `num_blocks` blocks, at least one.

        An identity stands for all blocks before it, too, so two searches for one identity have one result.
        """
        last = blocks.identity(num_blocks - 1)
        found = self._leading.get(last)
        if found is None:
            found = self.find_all(map(blocks.identity, range(num_blocks)))
            if len(self._leading) >= MAX_CACHED_SEARCHES:
                self._leading.clear()
            self._leading[last] = found
        return found.copy()

    def is_registered(self, block: int) -> bool:
        """Whether `block` can be found."""
        return block in self._identity_of


# Interfaces of KV caches: of all, of those with slots by position, and of those that count what the cohort holds.


class PagedCache(ABC):
    """Blocks of a fixed number of tokens. Every call has its whole effect or changes nothing."""

    __slots__ = ("block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size_tokens

    @property
    @abstractmethod
    def num_used_blocks(self) -> int: ...

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""

    @abstractmethod
    def forget(self) -> bool:
        """Empty the prefix cache. Returns False, and changes nothing, while any block is held."""

    @abstractmethod
    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the sequence's beginning, free or in use. Changes nothing."""

    @abstractmethod
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Allocate slots for the next `num_tokens` tokens of a running sequence; False, unchanged, if too few."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Give all blocks back at the end of a request."""

    @abstractmethod
    def evict(self, sequence: Sequence) -> None:
        """Free all blocks of a request that will return; other requests can find the blocks that it can find again."""


class SlotCache(PagedCache):
    """A paged KV cache with prefix caching. One of the configured blocks is vLLM's null block and never handed out."""

    __slots__ = ("_limit_tokens", "enables_caching", "hit_tokens", "index", "queried_tokens", "watermark_blocks")

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.total_kv_blocks - 1, config.block_size_tokens)
        self.enables_caching = config.enable_prefix_caching
        self.watermark_blocks = int(config.watermark_fraction * config.total_kv_blocks)
        """Blocks that an admission must leave free while other sequences run."""
        self.index = ContentIndex()
        self.hit_tokens = 0
        """Prompt tokens found in the cache, counted once per request."""
        self.queried_tokens = 0
        """Prompt tokens looked up, counted once per request."""
        self._limit_tokens = config.limit_tokens

    def forget(self) -> bool:
        if self.num_used_blocks:
            return False
        self.index = ContentIndex()
        return True

    def count_lookup(self, sequence: Sequence, num_hit_blocks: int) -> None:
        """Count an admission in the cache's hit rate; a request that was preempted before does not count again."""
        if self.enables_caching and sequence.request.reads_prefix_cache and sequence.num_preemptions == 0:
            self.queried_tokens += sequence.input_tokens + sequence.num_output_tokens
            self.hit_tokens += num_hit_blocks * self.block_size

    def num_found_tokens(self, hits: SequenceOf[int]) -> int:
        """Return the tokens in the cached blocks that were found latest."""
        return len(hits) * self.block_size

    def boundary_tokens(self, sequence: Sequence) -> int:
        """Return where a beginning ends that a request shares with others, if more of it is found in some groups.

        0 without, as where all layers keep the same.
        """
        return 0

    def new_step(self) -> None:
        """Note that a step is about to be composed."""

    @abstractmethod
    def admit(
        self, sequence: Sequence, num_tokens: int, hits: SequenceOf[int], whole_must_fit: bool, others_run: bool
    ) -> bool:
        """Allocate slots for a waiting sequence: the cached blocks `hits` and the next `num_tokens` tokens after them.

        With `whole_must_fit` all it has to compute so far must fit now. While others run, the watermark stays free.
        """

    @abstractmethod
    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable."""

    @abstractmethod
    def withhold(self, num_blocks: int) -> None:
        """Withhold `num_blocks` blocks in total from all sequences, or all free ones."""

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks for `num_tokens` tokens, at most those that one request can ever have."""
        return -(-min(num_tokens, self._limit_tokens) // self.block_size)


class CohortCache(SlotCache):
    """Counts blocks instead of numbering them. Blocks of a cohort member are recorded when it leaves."""

    __slots__ = ("free",)

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.free = FreeBlockRuns(self.num_blocks)

    @abstractmethod
    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough, and forget what they held."""

    @abstractmethod
    def will_share(self, sequence: Sequence) -> bool:
        """Whether there are blocks that others could find once it has filled them."""

    @abstractmethod
    def grow_to(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """Count what has been taken for `num_tokens` tokens, of which the first `num_known_tokens` can be found."""

    @abstractmethod
    def release_grown(self, sequence: Sequence, num_tokens: int, num_known_tokens: int) -> None:
        """`grow_to` and `release`, in one call."""

    @abstractmethod
    def may_fit(self, sequence: Sequence, num_hits: int) -> bool:
        """Whether a waiting sequence may find room before any block is given back."""

    @abstractmethod
    def hold_prompt(self, sequence: Sequence, num_tokens: int) -> int:
        """Count a prompt that no request shares as stored. Returns how many blocks are to be taken for it."""
