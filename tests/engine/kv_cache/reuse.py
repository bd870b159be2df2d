"""The order in which the free blocks of a pool are reused, found without a change to the pool."""

from collections import OrderedDict, deque

from blis_sim.engine.kv_cache.block_pool import BlockPool


def order_of_reuse(pool: BlockPool) -> list[int]:
    """Return the blocks as a copy of the pool gives them out. A compiled pool cannot be copied by `copy.deepcopy`."""
    twin = BlockPool(pool.num_blocks)
    twin._num_touched = pool._num_touched
    twin._freed = OrderedDict(pool._freed)
    twin._first = deque(pool._first)
    twin._references = list(pool._references)
    return [twin.take() for _ in range(twin.num_free)]
