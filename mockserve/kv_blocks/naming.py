"""How KV blocks are named for the outside: by hashes of vLLM or of ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from blis_sim.engine.request import BlockIdentities, HashedBlocks
from mockserve.kv_blocks.hashes import ExtraKeys, block_digests, block_hashes


class Lora(Protocol):
    """What separates the blocks of an adapter from those of others."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Blocks with equal tokens are equal only within one of these."""

    cache_salt: str = ""
    lora: Lora | None = None


ANYWHERE = Scope()

NameBlocks: TypeAlias = Callable[[str, Sequence[int], Scope], BlockIdentities]
"""From the id of a request, the tokens of its prompt and answer, and their scope."""


@dataclass(frozen=True, slots=True)
class FastNaming:
    """Names that mean nothing outside of this server."""

    block_size_tokens: int
    lookahead_tokens: int = 0

    def __call__(self, request_id: str, token_ids: Sequence[int], scope: Scope) -> BlockIdentities:
        salt = scope.cache_salt
        if scope.lora is not None:
            salt = f"{salt} lora {scope.lora.name} {scope.lora.path}"
        return HashedBlocks(request_id, block_hashes(token_ids, self.block_size_tokens, salt, self.lookahead_tokens))


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
