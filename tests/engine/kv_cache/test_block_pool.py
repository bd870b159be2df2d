"""The check of a pool of blocks, on which the laws rely; goldens show the order in which it hands them out."""

import pytest

from blis_sim.engine.kv_cache.block_pool import BlockPool


def test_the_check_finds_a_block_given_back_twice() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.give_back(block)
    pool.give_back(block)
    with pytest.raises(AssertionError, match=f"block {block} has -1 references"):
        pool.check()
