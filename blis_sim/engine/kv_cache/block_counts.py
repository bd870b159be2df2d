"""KV blocks by number alone, for schedulers that share none of them."""

from collections.abc import Container, KeysView


class NothingFound:
    """The content of a cache in which nothing can be found again."""

    def identities(self) -> KeysView[object]:
        return dict[object, None]().keys()

    def found_now(self) -> Container[object]:
        return ()


class BlockCounts:
    """A number of blocks of so many tokens, each free or held by one request."""

    __slots__ = ("block_size_tokens", "hit_tokens", "index", "num_blocks", "num_free", "queried_tokens")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.block_size_tokens = block_size_tokens
        self.index = NothingFound()
        self.hit_tokens = self.queried_tokens = 0

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free

    def take(self, num_blocks: int) -> None:
        """Take free blocks, of which there must be enough."""
        self.num_free -= num_blocks
        assert self.num_free >= 0, "more blocks were taken than there are"

    def give_back(self, num_blocks: int) -> None:
        """Let blocks be free again."""
        self.num_free += num_blocks

    def check(self) -> None:
        """Raise AssertionError unless every block is either free or held."""
        assert 0 <= self.num_free <= self.num_blocks

    def forget(self) -> bool:
        """Let nothing be found any more. False while any block is held."""
        return self.num_free == self.num_blocks
