"""CPU memory behind vLLM's KV cache: its order of leaving takes room by blocks held, however often they are used.

`python -m workshop.vllm_oracle.offloading` compares what leaves with vLLM's own manager.
"""

import pytest

from blis_sim.engine.kv_cache.offload_tier import OffloadTier, RequestUse

NUM_BLOCKS = 20


@pytest.mark.parametrize("is_full", [False, True])
def test_blocks_that_are_used_again_and_again_take_no_more_room(is_full: bool) -> None:
    names = [f"b{number}" for number in range(NUM_BLOCKS)]
    places = [(16 * (number + 1), 0) for number in range(NUM_BLOCKS)]
    tier, first = OffloadTier(NUM_BLOCKS if is_full else 2 * NUM_BLOCKS), RequestUse()
    assert tier.store(names, places, first) == names
    tier.stored(names, 0)
    if is_full:
        other = RequestUse()
        assert tier.store(["other"], [(16, 0)], other) == ["other"], "for which the last block leaves"
        tier.stored(["other"], 0)
        tier.finish(other)
    for _ in range(50):
        use = RequestUse()
        held = names[: NUM_BLOCKS - 1]
        tier.load(held, places[: NUM_BLOCKS - 1], use)
        for name in held:
            tier.unpin(name)
        tier.finish(use)
    assert len(tier._heap or ()) <= 5 * NUM_BLOCKS + 64
