"""Names of KV blocks: hashes as vLLM computes them, or fast ones where nothing compares them."""

import hashlib
import pickle
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, TypeAlias

from blis_sim.engine.request import BlockIdentities, HashedBlocks

Hash: TypeAlias = Callable[[object], bytes]
ExtraKeys: TypeAlias = tuple[tuple[str, ...], ...] | None
"""Tagged values, such as ("cache_salt", salt), or None."""

DEFAULT_SEED = "vllm-none-hash"
LOW_64_BITS = (1 << 64) - 1


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _canonical_cbor(value: object) -> bytes:
    import cbor2

    encoded: bytes = cbor2.dumps(value, canonical=True)
    return encoded


def _sha256(value: object) -> bytes:
    return hashlib.sha256(_pickled(value)).digest()


def _sha256_cbor(value: object) -> bytes:
    return hashlib.sha256(_canonical_cbor(value)).digest()


def _xxhash(value: object) -> bytes:
    import xxhash

    return xxhash.xxh3_128_digest(_pickled(value))


def _xxhash_cbor(value: object) -> bytes:
    import xxhash

    return xxhash.xxh3_128_digest(_canonical_cbor(value))


ALGORITHMS: Mapping[str, Hash] = {
    "sha256": _sha256,
    "sha256_cbor": _sha256_cbor,
    "xxhash": _xxhash,
    "xxhash_cbor": _xxhash_cbor,
}

NEEDS_SECRET_SEED = frozenset({"xxhash", "xxhash_cbor"})
"""Algorithms whose collisions can be made from a known seed."""


def root_hash(algorithm: str, python_hash_seed: str | None) -> bytes:
    """Return the hash that stands for the block before the first one. `python_hash_seed` is PYTHONHASHSEED, None if it
    is not set."""
    if python_hash_seed is None:
        python_hash_seed = secrets.token_hex(32) if algorithm in NEEDS_SECRET_SEED else DEFAULT_SEED
    return ALGORITHMS[algorithm](python_hash_seed)


def block_digests(
    token_ids: Sequence[int],
    block_size_tokens: int,
    algorithm: str,
    root: bytes,
    extra_keys: Sequence[ExtraKeys],
    lookahead_tokens: int = 0,
) -> tuple[bytes, ...]:
    """Return one digest per full block with so many tokens after it, which it covers, too. `extra_keys` has an entry
    for each.

    Cost: about 3 us per block of 16 tokens.
    """
    digest = root
    digests = []
    hash_of = ALGORITHMS[algorithm]
    for index, keys in enumerate(extra_keys):
        start, end = index * block_size_tokens, (index + 1) * block_size_tokens
        further: object = (keys, *token_ids[end : end + lookahead_tokens]) if lookahead_tokens else keys
        digest = hash_of((digest, tuple(token_ids[start:end]), further))
        digests.append(digest)
    return tuple(digests)


def as_number(digest: bytes) -> int:
    """The low 64 bits, as events carry them."""
    return int.from_bytes(digest, "big") & LOW_64_BITS


DIGEST_BYTES = 8


def block_hashes(
    token_ids: Sequence[int], block_size_tokens: int, salt: str = "", lookahead_tokens: int = 0
) -> tuple[int, ...]:
    """Return one 64-bit hash per full block. Equal beginnings with equal salt give equal hashes, in every process.

    Each hash covers so many tokens after its block, too; a block without them has no hash. Cost: about 1 us per block.
    """
    packed = array("I", token_ids).tobytes()
    width = block_size_tokens * array("I").itemsize
    reach = width + lookahead_tokens * array("I").itemsize
    digest = salt.encode("utf-8", "surrogatepass")
    hashes = []
    for start in range(0, len(packed) - reach + 1, width):
        digest = blake2b(digest + packed[start : start + reach], digest_size=DIGEST_BYTES).digest()
        hashes.append(int.from_bytes(digest, "little"))
    return tuple(hashes)


def token_digest(token_ids: Sequence[int]) -> int:
    """A 64-bit hash of all of a prompt."""
    packed = array("I", token_ids).tobytes()
    return int.from_bytes(blake2b(packed, digest_size=DIGEST_BYTES).digest(), "little")


class Lora(Protocol):
    """The properties of an adapter that separate its blocks from others."""

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
"""A function from the id of a request, the tokens of its prompt and answer, and their scope to its block names."""


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
    """The blocks of one request; blocks beyond its known tokens are its own and are not published."""

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
