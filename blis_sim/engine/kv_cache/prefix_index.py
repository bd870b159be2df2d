"""Indexes from content to the blocks that hold it, by which equal prompt beginnings become hits; reported changes."""

from collections.abc import Container, Iterable, KeysView, Sequence

from blis_sim.engine.request import BlockIdentities


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

        As in BLIS the identity goes with it even if another block holds the same content by now: that other block is
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

    def register_all(self, blocks: range, identities: Sequence[object]) -> None:
        """Register each of `blocks` as now holding the content of its own among `identities`."""
        self._block_of.update(zip(identities, blocks, strict=True))
        self._identity_of.update(zip(blocks, identities, strict=True))

    def overwrite(self, blocks: range, identities: Sequence[object], lost: Iterable[tuple[int, int]]) -> None:
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
