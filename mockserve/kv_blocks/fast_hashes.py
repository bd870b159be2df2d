"""Names for KV blocks of real tokens: each is a hash of the block's tokens and of all blocks before it."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 8


def block_hashes(
    token_ids: Sequence[int], block_size_tokens: int, salt: str = "", lookahead_tokens: int = 0
) -> tuple[int, ...]:
    """One 64-bit hash per full block. Equal beginnings with equal salt give equal hashes, in every process.

    Each covers so many tokens after its block, too, and there is none for a block without them. Cost: about 1 us per
    block.
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
