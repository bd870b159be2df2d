"""Sharing under a drafter that reads one token ahead."""

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.grouped_cache import NextTokenKVCache
from blis_sim.engine.request import HashedBlocks
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.speculation import Speculation
from tests.fakes import request

BLOCK = 4


def cache(hashes_next_token: bool = True, keeps_last_hit_block: bool = False) -> NextTokenKVCache:
    speculation = Speculation(
        method="eagle",
        num_tokens=2,
        acceptance_rates=(0.5, 0.5),
        hashes_next_token=hashes_next_token,
        keeps_last_hit_block=keeps_last_hit_block,
    )
    limits = EngineConfig(50, block_size_tokens=BLOCK, engine="vllm", speculation=speculation)
    return NextTokenKVCache(limits, speculation)


def asking(name: str, input_tokens: int) -> Sequence:
    """All requests whose names begin alike have the same prompt, as far as it goes."""
    return Sequence(request(name, input_tokens)._replace(blocks=HashedBlocks(name, tuple(range(20)))), 0)


def admitted(kv: NextTokenKVCache, sequence: Sequence) -> Sequence:
    assert kv.admit(sequence, sequence.num_tokens, (), whole_must_fit=True, others_run=False)
    return sequence


def test_a_block_is_findable_once_the_token_after_it_exists() -> None:
    kv = cache()
    first = admitted(kv, asking("a", 8))
    assert len(kv.cached_prefix(asking("b", 20))) == 1
    first.num_output_tokens = 1
    kv.register(first, 9)
    assert len(kv.cached_prefix(asking("b", 20))) == 2


def test_with_plain_names_the_last_block_found_is_computed_anew() -> None:
    kv = cache(hashes_next_token=False)
    admitted(kv, asking("a", 12))
    assert len(kv.cached_prefix(asking("b", 20))) == 2
    assert kv.cached_prefix(asking("c", 3)) == []


def test_the_last_block_found_can_be_kept_as_without_drafts() -> None:
    kv = cache(keeps_last_hit_block=True)
    admitted(kv, asking("a", 12))
    assert len(kv.cached_prefix(asking("b", 20))) == 3


def test_an_allocation_holds_slots_for_the_drafts() -> None:
    kv = cache()
    sequence = admitted(kv, asking("a", 7))
    assert len(sequence.block_ids) == 3
    sequence.num_computed_tokens = 7
    assert kv.allocate(sequence, 3)
    assert len(sequence.block_ids) == 3
    sequence.num_computed_tokens = 10
    assert kv.allocate(sequence, 1)
    assert len(sequence.block_ids) == 4
