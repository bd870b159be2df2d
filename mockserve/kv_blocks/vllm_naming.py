"""Blocks that know their tokens: named by vLLM's hashes, and with all that an event says of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from blis_sim.engine.request import BlockIdentities
from mockserve.kv_blocks.naming import Lora, Scope
from mockserve.kv_blocks.vllm_hashes import ExtraKeys, block_digests


@dataclass(frozen=True, slots=True)
class TokenBlocks:
    """The blocks of one request; those beyond its known tokens are its own and nobody is told of them."""

    request_id: str
    digests: tuple[bytes, ...]
    token_ids: Sequence[int]
    extra_keys: Sequence[ExtraKeys]
    lora: Lora | None

    @property
    def num_shareable(self) -> int:
        return len(self.digests)

    def identity(self, index: int) -> object:
        return self.digests[index] if index < len(self.digests) else (self.request_id, index)


@dataclass(frozen=True, slots=True)
class VllmNaming:
    """vLLM's hashes. `root` stands for the block before the first one."""

    block_size_tokens: int
    algorithm: str
    root: bytes
    lookahead_tokens: int = 0

    def __call__(self, request_id: str, token_ids: Sequence[int], scope: Scope) -> BlockIdentities:
        tokens = list(token_ids)
        num_blocks = max(0, len(tokens) - self.lookahead_tokens) // self.block_size_tokens
        keys = [_extra_keys(index, scope) for index in range(num_blocks)]
        digests = block_digests(tokens, self.block_size_tokens, self.algorithm, self.root, keys, self.lookahead_tokens)
        return TokenBlocks(request_id, digests, tokens, keys, scope.lora)


def _extra_keys(index: int, scope: Scope) -> ExtraKeys:
    """The adapter in every block, the salt in the first, for the others follow from it."""
    keys: list[tuple[str, ...]] = []
    if scope.lora is not None:
        keys.append(("lora", scope.lora.name, scope.lora.path))
    if scope.cache_salt and index == 0:
        keys.append(("cache_salt", scope.cache_salt))
    return tuple(keys) or None
