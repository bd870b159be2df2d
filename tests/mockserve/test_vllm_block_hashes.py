"""Block hashes are vLLM's, bit for bit."""

import json
from pathlib import Path

import pytest

from mockserve.kv_events.naming import (
    ALGORITHMS,
    ExtraKeys,
    Scope,
    TokenBlocks,
    VllmNaming,
    as_number,
    block_digests,
    root_hash,
)
from mockserve.options.vllm_flags import read_table

PROMPT = list(range(2000, 2048))

SEEN = [14861522777702955888, 10186821764735471867, 1693549148520061288]
"""Seen of a genuine server, for `PROMPT`."""

SEEN_WITH_SALT = [2913099910042579508, 12326628870204010927, 13738406578299225915]
"""Hashes of a request with the cache salt "pepper"."""


def numbers(salt: str = "") -> list[int]:
    naming = VllmNaming(16, "sha256", root_hash("sha256", None))
    blocks = naming("r", PROMPT, Scope(salt))
    assert isinstance(blocks, TokenBlocks)
    return [as_number(digest) for digest in blocks.digests]


def test_hashes_are_those_of_a_genuine_server() -> None:
    assert numbers() == SEEN
    assert numbers("pepper") == SEEN_WITH_SALT


def test_hashes_are_those_that_were_captured(reference: Path) -> None:
    event = json.loads((reference / "golden/vllm/kv.out").read_text())
    assert event["token_ids"] == PROMPT
    assert event["block_hashes"] == numbers()


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("sha256", "421b636c017e7e93dd99304164c8dc51"),
        ("sha256_cbor", "1e13849bec89f27a840c58f4886885e3"),
        ("xxhash", "3f9d4658214d1412fbdc49dda8236600"),
        ("xxhash_cbor", "715596db0e6a7c2e6b2b717a8d30a94a"),
    ],
)
def test_every_algorithm_starts_from_the_seed_of_python(algorithm: str, expected: str) -> None:
    """The figures are those of vLLM's functions with PYTHONHASHSEED=0."""
    pytest.importorskip({"xxhash": "xxhash", "sha256": "hashlib"}.get(algorithm, "cbor2"))
    keys: list[ExtraKeys] = [None, None, (("cache_salt", "x"),)]
    found = block_digests(PROMPT, 16, algorithm, root_hash(algorithm, "0"), keys)
    assert len(found) == 3
    assert found[2].hex()[:32] == expected


def test_all_algorithms_are_those_of_vllm() -> None:
    assert set(ALGORITHMS) == set(read_table()["--prefix-caching-hash-algo"].choices)


def test_with_a_secret_seed_no_two_servers_agree() -> None:
    pytest.importorskip("xxhash")
    assert root_hash("xxhash", None) != root_hash("xxhash", None)
