"""Which blocks hold which content, when several may hold the same: vLLM's prefix cache does not merge duplicates."""

from collections.abc import Container, Iterable, KeysView

from blis_sim.engine.request import BlockIdentities

MOST_REMEMBERED = 256
"""Answers to questions about leading blocks."""


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

    def found_now(self) -> Container[object]:
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
        """The block registered the longest ago with this content."""
        blocks = self._blocks_of.get(identity)
        return None if blocks is None else next(iter(blocks))

    def find_all(self, identities: Iterable[object]) -> list[int]:
        """`find` for each of them, up to the first whose content nothing holds."""
        found: list[int] = []
        for block in map(self.find, identities):
            if block is None:
                break
            found.append(block)
        return found

    def find_leading(self, blocks: BlockIdentities, num_blocks: int) -> list[int]:
        """`find_all` for the first so many blocks, at least one.

        An identity stands for all blocks before it, too, so two searches for one identity have one result.
        """
        last = blocks.identity(num_blocks - 1)
        found = self._leading.get(last)
        if found is None:
            found = self.find_all(map(blocks.identity, range(num_blocks)))
            if len(self._leading) >= MOST_REMEMBERED:
                self._leading.clear()
            self._leading[last] = found
        return found.copy()

    def is_registered(self, block: int) -> bool:
        """Whether `block` can be found."""
        return block in self._identity_of
