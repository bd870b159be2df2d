"""Hashes of KV blocks: vLLM's hashes, or faster ones if no client compares them."""

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
"""Algorithms for which collisions can be constructed if the seed is known."""


def root_hash(algorithm: str, python_hash_seed: str | None) -> bytes:
    """Return the parent hash of the first block. `python_hash_seed` is PYTHONHASHSEED, None if unset."""
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
    """Return one digest per full block that is followed by `lookahead_tokens` tokens, which the digest covers too.

    `extra_keys` has an entry for each block. Cost: about 3 us per block of 16 tokens.
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
    """Return the low 64 bits, as used in events."""
    return int.from_bytes(digest, "big") & LOW_64_BITS


DIGEST_BYTES = 8


def block_hashes(
    token_ids: Sequence[int], block_size_tokens: int, salt: str = "", lookahead_tokens: int = 0
) -> tuple[int, ...]:
    """Return one 64-bit hash per full block. Equal prefixes with equal salt give equal hashes, in every process.

    Each hash also covers the `lookahead_tokens` tokens after its block; a block without them has no hash. Cost: about
    1 us per block.
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
    """Return a 64-bit hash of a whole prompt."""
    packed = array("I", token_ids).tobytes()
    return int.from_bytes(blake2b(packed, digest_size=DIGEST_BYTES).digest(), "little")


class Lora(Protocol):
    """The properties of an adapter that its block hashes depend on."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Blocks with equal tokens are shared only within one scope."""

    cache_salt: str = ""
    lora: Lora | None = None


GLOBAL_SCOPE = Scope()

NameBlocks: TypeAlias = Callable[[str, Sequence[int], Scope], BlockIdentities]
"""A function from a request id, the tokens of prompt and answer, and their scope to block hashes."""


@dataclass(frozen=True, slots=True)
class FastNaming:
    """Fast hashes without a meaning outside of this server."""

    block_size_tokens: int
    lookahead_tokens: int = 0

    def __call__(self, request_id: str, token_ids: Sequence[int], scope: Scope) -> BlockIdentities:
        salt = scope.cache_salt
        if scope.lora is not None:
            salt = f"{salt} lora {scope.lora.name} {scope.lora.path}"
        return HashedBlocks(request_id, block_hashes(token_ids, self.block_size_tokens, salt, self.lookahead_tokens))


@dataclass(frozen=True, slots=True)
class TokenBlocks:
    """The blocks of one request; blocks beyond its known tokens are unique and not published."""

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
    """vLLM's hashes. `root` is the parent hash of the first block."""

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
    """Return the extra keys of a block: the adapter, and in the first block the salt, on which later blocks depend."""
    keys: list[tuple[str, ...]] = []
    if scope.lora is not None:
        keys.append(("lora", scope.lora.name, scope.lora.path))
    if scope.cache_salt and index == 0:
        keys.append(("cache_salt", scope.cache_salt))
    return tuple(keys) or None
