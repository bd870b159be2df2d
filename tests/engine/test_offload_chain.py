"""CPU memory and devices behind BLIS's KV cache: queues of a device, what stays, and requests that wait for blocks."""

from typing import Any

import pytest

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished, Scheduled
from blis_sim.engine.offloading import ChainedBlocks, Device, OffloadChain, Station
from blis_sim.engine.request import PrefixGroupBlocks, Request
from tests.fakes import TestLatency

DEVICE = Device(read_bytes_us=100, write_bytes_us=50, base_us=10, num_readers=1, num_writers=1)


def ends(device: Device, *is_read: bool, num_bytes: float = 1000) -> list[tuple[int, object]]:
    """When transfers end that are submitted at once, numbered from 0."""
    station = Station(device, num_bytes, 1)
    for number, each in enumerate(is_read):
        station.submit(each, number, number, 0)
    found = []
    while (at := station.next_at) is not None:
        found.append((at, station.pop()[1]))
    return found


def test_readers_and_writers_serve_their_own_direction_first() -> None:
    assert ends(DEVICE, True, False) == [(20, 0), (30, 1)]


def test_an_idle_writer_reads_and_an_idle_reader_writes() -> None:
    assert ends(DEVICE, True, True) == [(20, 0), (20, 1)]
    assert ends(DEVICE, False, False, False) == [(30, 0), (30, 1), (60, 2)]


@pytest.mark.parametrize(("at_once", "took_us"), [(1, 110), (2, 60), (3, 43), (5, 30), (9, 30)])
def test_few_transfers_at_once_reach_a_share_of_the_rate(at_once: int, took_us: int) -> None:
    device = Device(read_bytes_us=50, write_bytes_us=1, base_us=10, saturation_depth=5, single_fraction=0.2)
    assert device.service_us(True, 1000, at_once, 1) == took_us


def test_deviations_are_drawn_and_never_negative() -> None:
    device = Device(read_bytes_us=100, write_bytes_us=100, base_us=10, jitter_stdev=2.0)
    drawn = [device.service_us(True, 1000, 1, number) for number in range(50)]
    assert min(drawn) == 1  # a twentieth of 20 us
    assert len(set(drawn)) > 10


def chained(num_blocks: int, *devices: Device) -> ChainedBlocks:
    return ChainedBlocks(OffloadChain(num_blocks=num_blocks, block_bytes=1000, devices=devices))


def test_the_least_recently_used_block_leaves_unless_it_is_being_written() -> None:
    alone = chained(2)
    alone.mirror("abac", 0)
    assert [block in alone for block in "abc"] == [True, False, True]
    busy = chained(2, DEVICE)
    busy.mirror("abc", 0)  # a and b are on their way to the device
    assert [block in busy for block in "abc"] == [True, True, False]
    busy.advance(1000)
    busy.mirror("c", 1000)
    assert [block in busy for block in "abc"] == [False, True, True]
    assert [busy.place_of(block) for block in "abc"] == [0, 0, None]


def test_blocks_come_back_from_the_first_device_all_or_none() -> None:
    blocks = chained(2, DEVICE, Device(read_bytes_us=1, write_bytes_us=50, base_us=1))
    for each in "abc":
        blocks.mirror(each, 0)
        blocks.advance(10_000)
    assert not blocks.promote(["a", "b", "c"], 10_000)
    assert blocks.promote(["a"], 10_000)
    assert blocks.is_arriving("a")
    blocks.advance(10_020)
    assert "a" in blocks
    assert (blocks.num_promotions, blocks.num_refused) == (2, 1)


def visits(chain: OffloadChain, *names: str, **settings: Any) -> tuple[dict[str, int], Engine]:
    """When requests with prompts of 64 tokens of the group that they are named by were admitted, each by itself."""
    config = EngineConfig(10, engine="blis", block_size_tokens=8, offload_chain=chain, **settings)
    engine = Engine(config, TestLatency(step_us=1000))
    admitted: dict[str, int] = {}
    for number, name in enumerate(names):
        at = number * 1_000_000
        engine.submit(Request(f"{name}{number}", 65, 2, PrefixGroupBlocks(f"{name}{number}", name, 8), 2), at)
        for event in engine.advance(at + 999_999):
            if isinstance(event, Scheduled):
                admitted[event.sequence.request.id] = event.at - at
            assert not isinstance(event, Finished) or event.sequence.num_output_tokens == 2
    engine.check_integrity()
    return admitted, engine


def test_a_request_waits_for_blocks_that_only_a_device_has() -> None:
    slow = Device(read_bytes_us=1, write_bytes_us=1000, base_us=500, num_readers=8)
    chain = OffloadChain(num_blocks=9, block_bytes=1000, devices=(slow,))
    admitted, engine = visits(chain, "x", "y", "z", "x", "y")
    assert [admitted[name] for name in ("x0", "y1", "z2")] == [0, 0, 0]
    # One look-up, then blocks of 500 + 1000 us each, eight at once.
    assert admitted["x3"] >= 1_500
    assert admitted["y4"] >= 1_500
    assert engine.kv.hit_tokens > 0


def test_without_devices_blocks_are_brought_back_at_once() -> None:
    admitted, engine = visits(OffloadChain(num_blocks=100, block_bytes=1000), "x", "y", "z", "x")
    assert set(admitted.values()) == {0}
    assert engine.kv.hit_tokens > 0


@pytest.mark.parametrize(("budget_tokens", "num_hit_blocks"), [(200, 8), (32, 4), (20, 3)])
def test_a_chunk_claims_no_more_of_what_comes_back_than_it_computes(budget_tokens: int, num_hit_blocks: int) -> None:
    chain = OffloadChain(num_blocks=100, block_bytes=1000)
    _, engine = visits(chain, "x", "y", "z", "x", max_num_batched_tokens=budget_tokens)
    assert engine.kv.hit_tokens == num_hit_blocks * 8


def test_what_came_back_stays_with_a_request_that_finds_no_room_for_the_rest() -> None:
    config = EngineConfig(
        12, engine="blis", block_size_tokens=8, offload_chain=OffloadChain(num_blocks=99, block_bytes=1)
    )
    engine = Engine(config, TestLatency(step_us=1000))
    for number, (name, prompt_tokens, output_tokens) in enumerate([("x", 65, 2), ("y", 60, 30), ("x", 65, 2)]):
        blocks = PrefixGroupBlocks(f"{number}", name, 8)
        engine.submit(Request(f"{number}", prompt_tokens, output_tokens, blocks, output_tokens), number * 5_000)
    list(engine.advance(20_000))
    assert engine.stats.num_waiting == 1
    assert engine.kv.num_used_blocks > 10  # those of the one that runs are fewer
    list(engine.advance(1_000_000))
    assert engine.stats.num_waiting == engine.kv.num_used_blocks == 0


def test_reporting_steps_changes_no_instant_of_a_request() -> None:
    slow = Device(read_bytes_us=1, write_bytes_us=1000, base_us=500)
    chain = OffloadChain(num_blocks=9, block_bytes=1000, devices=(slow,))

    def instants(reports_steps: bool) -> list[tuple[str, int]]:
        config = EngineConfig(10, engine="blis", block_size_tokens=8, offload_chain=chain)
        engine = Engine(config, TestLatency(step_us=1000), reports_steps)
        for number, name in enumerate("xyzxyz"):
            engine.submit(Request(f"{number}", 65, 2, PrefixGroupBlocks(f"{number}", name, 8), 2), number * 20_000)
        ended = (event for event in engine.advance(10**7) if isinstance(event, Finished))
        return [(event.sequence.request.id, event.at) for event in ended]

    assert instants(True) == instants(False)
