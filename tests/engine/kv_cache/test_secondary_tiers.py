"""Devices behind CPU memory as vLLM has them: what they are asked, what comes from them, and what stays meanwhile."""

import pytest

from blis_sim.engine.kv_cache.offload_tier import Lookup, OffloadTier, Place, RequestUse
from blis_sim.engine.kv_cache.secondary_tiers import SecondaryTiers
from blis_sim.engine.offloading import Device, OffloadConfig

SLOW = Device(read_bytes_us=1.0, write_bytes_us=1.0, base_us=0)
FAST = Device(read_bytes_us=2.0, write_bytes_us=2.0, base_us=0)
BLOCK_BYTES = 10.0


def tiers(num_blocks: int, *devices: Device) -> tuple[OffloadTier, SecondaryTiers]:
    tier = OffloadTier(num_blocks)
    return tier, SecondaryTiers(
        tier, OffloadConfig(num_blocks, 1.0, stored_bytes=BLOCK_BYTES, devices=devices or (SLOW,))
    )


def place(end: int) -> Place:
    return end * 16, 0


def keep(tier: OffloadTier, behind: SecondaryTiers, name: str, at: int) -> None:
    """Let another request bring a block to CPU memory."""
    assert tier.store([name], [place(1)], RequestUse()) == [name]
    tier.stored([name], at)
    behind.write([name], at)


def test_a_device_answers_after_the_composition_that_asks() -> None:
    tier, behind = tiers(1)
    keep(tier, behind, "a", 0)
    behind.hear(100)
    keep(tier, behind, "b", 100)  # for which a leaves
    behind.hear(200)
    use = RequestUse()
    assert (tier.lookup("a"), behind.lookup("a", place(1), use)) == (Lookup.MISS, Lookup.RETRY)
    behind.end_composition(200)
    assert behind.is_due(200)
    behind.hear(200)
    assert behind.lookup("a", place(1), use) is Lookup.PENDING
    behind.end_composition(200)
    assert (behind.next_at, behind.num_blocks) == (210, (1, 2))
    behind.hear(209)
    assert tier.lookup("a") is Lookup.PENDING
    behind.hear(210)
    assert tier.lookup("a") is Lookup.HIT


def test_what_is_being_written_does_not_leave_cpu_memory() -> None:
    tier, behind = tiers(1, SLOW, FAST)
    keep(tier, behind, "a", 0)
    behind.hear(5)
    assert tier.store(["b"], [place(1)], RequestUse()) is None, "the slow device still writes"
    behind.hear(10)
    assert not behind.has_jobs
    assert tier.store(["b"], [place(1)], RequestUse()) == ["b"]


def test_what_a_device_has_already_is_not_written_again() -> None:
    tier, behind = tiers(1)
    keep(tier, behind, "a", 0)
    behind.hear(10)
    keep(tier, behind, "b", 10)
    behind.hear(20)
    keep(tier, behind, "a", 20)
    assert behind.next_at == 21


def test_without_room_in_cpu_memory_a_block_counts_as_absent() -> None:
    tier, behind = tiers(1)
    keep(tier, behind, "a", 0)
    behind.hear(10)
    use = RequestUse()
    assert tier.store(["b"], [place(1)], RequestUse()) == ["b"]
    assert behind.lookup("a", place(1), use) is Lookup.RETRY
    behind.end_composition(10)
    behind.hear(10)
    assert behind.lookup("a", place(1), use) is Lookup.MISS, "b is on its way to CPU memory, which has no other place"


@pytest.mark.parametrize("lives", [True, False])
def test_an_answer_is_kept_as_long_as_a_request_lives_that_asked(lives: bool) -> None:
    tier, behind = tiers(2)
    use = RequestUse()
    assert behind.lookup("a", place(1), use) is Lookup.RETRY
    behind.end_composition(0)
    behind.hear(0)
    assert behind.lookup("a", place(1), use) is Lookup.MISS
    keep(tier, behind, "a", 0)
    behind.hear(10)
    for name in ("b", "c"):
        keep(tier, behind, name, 20)
        behind.hear(30)
    if not lives:
        behind.finish(use)
    assert behind.lookup("a", place(1), RequestUse()) is (Lookup.MISS if lives else Lookup.RETRY)


def test_blocks_of_one_job_are_moved_one_after_the_other() -> None:
    tier, behind = tiers(4)
    names, places = ["a", "b", "c"], [place(1), place(2), place(3)]
    tier.store(names, places, RequestUse())
    tier.stored(names, 0)
    behind.write(names, 0)
    assert behind.next_at == 30
