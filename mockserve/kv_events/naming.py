"""Blocks that know their tokens: named by vLLM's hashes, and with all that an event says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from mockserve.kv_events.hashing import ExtraKeys, block_digests


@dataclass(frozen=True, slots=True)
class LoraIdentity:
    """What an event says of an adapter."""

    number: int
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class TokenBlocks:
    """The blocks of one request; those beyond its known tokens are its own and nobody is told of them."""

    request_id: str
    digests: tuple[bytes, ...]
    token_ids: Sequence[int]
    extra_keys: Sequence[ExtraKeys]
    lora: LoraIdentity | None

    @property
    def num_shareable(self) -> int:
        return len(self.digests)

    def identity(self, index: int) -> object:
        return self.digests[index] if index < len(self.digests) else (self.request_id, index)


@dataclass(frozen=True, slots=True)
class BlockNaming:
    """How blocks are hashed: `root` stands for the block before the first one."""

    block_size_tokens: int
    algorithm: str
    root: bytes

    def blocks(
        self, request_id: str, token_ids: Sequence[int], cache_salt: str = "", lora: LoraIdentity | None = None
    ) -> TokenBlocks:
        """The blocks of a request whose prompt and answer are `token_ids`."""
        tokens = list(token_ids)
        keys = [_extra_keys(index, cache_salt, lora) for index in range(len(tokens) // self.block_size_tokens)]
        digests = block_digests(tokens, self.block_size_tokens, self.algorithm, self.root, keys)
        return TokenBlocks(request_id, digests, tokens, keys, lora)


def _extra_keys(index: int, cache_salt: str, lora: LoraIdentity | None) -> ExtraKeys:
    """The adapter in every block, the salt in the first, for the others follow from it."""
    keys: list[tuple[str, ...]] = []
    if lora is not None:
        keys.append(("lora", lora.name, lora.path))
    if cache_salt and index == 0:
        keys.append(("cache_salt", cache_salt))
    return tuple(keys) or None
