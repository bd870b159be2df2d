"""How the KV blocks of a request get their names: by a fast hash, or by vLLM's where others are told of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from blis_sim.engine.request import BlockIdentities, HashedBlocks
from mockserve.kv_blocks.fast_hashes import block_hashes


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
