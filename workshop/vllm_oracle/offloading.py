"""Compares our CPU memory for KV blocks with vLLM's own manager of it, operation by operation.

    PYTHON_WITH_VLLM -m workshop.vllm_oracle.offloading --seeds 1000

Run it like `workshop.vllm_oracle`. Requests with common beginnings, whose layers are one group or several, store, load
and end at random.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from blis_sim.engine.kv_cache.offload_tier import Lookup, OffloadTier, Place, RequestUse
from workshop.ending import run_command
from workshop.vllm_oracle.histories import compare

NUM_OPERATIONS = 300
MOST_BLOCKS = 12


@dataclass(slots=True)
class Pair:
    """One request for both."""

    keys: list[bytes]
    places: list[Place]
    context: Any
    use: RequestUse = field(default_factory=RequestUse)
    num_offered: int = 0
    num_under_way: int = 0


def main() -> int:
    """Return the exit code."""
    return compare("offloading", "Our CPU memory for KV blocks against vLLM's.", _compare)


def _compare(seed: int) -> tuple[str, int]:
    """The first difference of one history, and how many operations were compared."""
    from vllm.v1.kv_offload.base import ReqContext  # type: ignore[import-not-found]
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager  # type: ignore[import-not-found]

    draws = random.Random(seed)
    size, num_groups = draws.randint(4, 40), draws.choice([1, 1, 2, 3])
    theirs, ours = CPUOffloadingManager(num_chunks=size), OffloadTier(size)
    requests: list[Pair] = []
    under_way: list[tuple[str, Pair, list[bytes]]] = []
    for number in range(NUM_OPERATIONS):
        kind = draws.random()
        if kind < 0.3 or not requests:
            requests.append(_new_request(draws, number, num_groups, ReqContext(req_id=f"r{number}"), theirs))
        elif kind < 0.6:
            difference = _store(draws, draws.choice(requests), theirs, ours, under_way)
            if difference:
                return f"operation {number}: {difference}", number
        elif kind < 0.75:
            _load(draws.choice(requests), theirs, ours, under_way)
        elif kind < 0.9 and under_way:
            _end_transfer(*under_way.pop(draws.randrange(len(under_way))), theirs, ours)
        elif idle := [each for each in requests if not each.num_under_way]:
            ended = draws.choice(idle)
            requests.remove(ended)
            theirs.on_request_finished(ended.context)
            ours.finish(ended.use)
        if (held := set(theirs._policy.chunks)) != set(ours._ranks):
            return f"operation {number}: vLLM holds {len(held)}, ours {len(ours)} other blocks", number
    return "", NUM_OPERATIONS


def _new_request(draws: random.Random, number: int, num_groups: int, context: Any, theirs: Any) -> Pair:
    group, shared = draws.randrange(6), draws.randint(0, MOST_BLOCKS)
    places = [(end, layers) for end in range(1, draws.randint(1, MOST_BLOCKS) + 1) for layers in range(num_groups)]
    keys = [
        (f"g{group}:{end}" if end <= shared else f"r{number}:{end}").encode() + layers.to_bytes(4, "big")
        for end, layers in places
    ]
    for key, (end, _) in zip(keys, places, strict=True):
        context.set_offload_key_position(key, end * 16)
    theirs.on_new_request(context)
    return Pair(keys, places, context)


def _store(
    draws: random.Random, request: Pair, theirs: Any, ours: OffloadTier, under_way: list[tuple[str, Pair, list[bytes]]]
) -> str:
    first, end = request.num_offered, draws.randint(request.num_offered, len(request.keys))
    keys = request.keys[first:end]
    if not keys:
        return ""
    output = theirs.prepare_store(keys, request.context)
    stored = ours.store(keys, request.places[first:end], request.use)
    if (None if output is None else list(output.keys_to_store)) != stored:
        return f"vLLM stores {output and output.keys_to_store}, ours {stored}"
    if stored is not None:
        request.num_offered = end
    if stored:
        under_way.append(("store", request, [key for key in keys if key in stored]))
        request.num_under_way += 1
    return ""


def _load(request: Pair, theirs: Any, ours: OffloadTier, under_way: list[tuple[str, Pair, list[bytes]]]) -> None:
    from vllm.v1.kv_offload.base import LookupResult

    kinds = {LookupResult.MISS: Lookup.MISS, LookupResult.HIT: Lookup.HIT, LookupResult.HIT_PENDING: Lookup.PENDING}
    found: list[bytes] = []
    for key in request.keys:
        lookup = kinds[theirs.lookup(key, request.context)]
        assert lookup is ours.lookup(key), f"vLLM finds {lookup}, ours {ours.lookup(key)}"
        if lookup is not Lookup.HIT:
            break
        found.append(key)
    if found:
        theirs.prepare_load(found, request.context)
        ours.load(found, request.places[: len(found)], request.use)
        under_way.append(("load", request, found))
        request.num_under_way += 1


def _end_transfer(kind: str, request: Pair, keys: list[bytes], theirs: Any, ours: OffloadTier) -> None:
    request.num_under_way -= 1
    if kind == "store":
        theirs.complete_store(keys, request.context)
        ours.stored(keys, 0)
        return
    theirs.complete_load(keys, request.context)
    for key in keys:
        ours.unpin(key)


if __name__ == "__main__":
    run_command(main)
