"""The prefix cache of the adaptive scheduler's worker: whole prompts in a budget of tokens, the least recent one goes.

Running requests hold none of it, so its utilisation is the share of stored prompts.
"""

from collections import OrderedDict
from collections.abc import KeysView

from blis_sim.engine.request import Request


class PromptStore:
    """Prompts by the identity of their first block. A prompt that shares its start with none is not stored."""

    __slots__ = ("_found", "_prompts", "_used_tokens", "block_size", "hit_tokens", "num_blocks", "queried_tokens")

    def __init__(self, num_blocks: int, block_size_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size_tokens
        self.hit_tokens = 0
        self.queried_tokens = 0
        self._prompts: OrderedDict[object, tuple[int, list[object]]] = OrderedDict()
        """Tokens and blocks of each prompt, the least recently used one first."""
        self._found: dict[object, None] = {}
        self._used_tokens = 0

    @property
    def index(self) -> "PromptStore":
        """The content: this object."""
        return self

    def identities(self) -> KeysView[object]:
        """Return the identities of the blocks that can be found: a view, which changes with the cache."""
        return self._found.keys()

    def identities_now(self) -> frozenset[object]:
        """Return the identities of the blocks that can be found at this instant."""
        return frozenset(self._found)

    @property
    def num_used_blocks(self) -> int:
        return self._used_tokens // self.block_size

    @property
    def utilization(self) -> float:
        """The used share of the budget."""
        return self._used_tokens / (self.num_blocks * self.block_size)

    def look_up(self, request: Request) -> int:
        """Return the tokens of a prompt that are stored, and count the prompt as used and looked up."""
        self.queried_tokens += request.input_tokens
        num_shareable = min(request.blocks.num_shareable * self.block_size, request.input_tokens)
        key = request.blocks.identity(0) if num_shareable and request.reads_prefix_cache else None
        if key is None or key not in self._prompts:
            return 0
        self._prompts.move_to_end(key)
        num_tokens, _ = self._prompts[key]
        # Blocks are whole, and the rest of a prompt that is shared as far as it goes is in its last one.
        is_shared_whole = request.input_tokens - num_shareable < self.block_size
        found = min(num_tokens, request.input_tokens if is_shared_whole else num_shareable)
        self.hit_tokens += found
        return found

    def store(self, request: Request) -> None:
        """Store a prompt, at the cost of the least recently used ones. One above the budget is not stored."""
        blocks, num_tokens = request.blocks, request.input_tokens
        if not blocks.num_shareable or num_tokens > self.num_blocks * self.block_size:
            return
        key = blocks.identity(0)
        self._drop(key)
        while self._used_tokens + num_tokens > self.num_blocks * self.block_size:
            self._drop(next(iter(self._prompts)))
        num_blocks = min(blocks.num_shareable, num_tokens // self.block_size)
        identities = [blocks.identity(index) for index in range(num_blocks)]
        self._prompts[key] = num_tokens, identities
        self._used_tokens += num_tokens
        for identity in identities:
            self._found[identity] = None

    def _drop(self, key: object) -> None:
        entry = self._prompts.pop(key, None)
        if entry is not None:
            num_tokens, identities = entry
            self._used_tokens -= num_tokens
            for identity in identities:
                self._found.pop(identity, None)

    def check(self) -> None:
        """Raise AssertionError unless the tokens of all prompts add up to those in use."""
        used = sum(num_tokens for num_tokens, _ in self._prompts.values())
        assert used == self._used_tokens <= self.num_blocks * self.block_size

    def forget(self) -> bool:
        """Forget all prompts."""
        self._prompts.clear()
        self._found.clear()
        self._used_tokens = 0
        return True
