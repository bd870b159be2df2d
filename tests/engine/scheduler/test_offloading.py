"""KV blocks in CPU memory with vLLM's scheduling: copies, loads, and requests that wait for loads."""

import random
from dataclasses import replace
from typing import Any

import pytest

from blis_sim.engine.config import PipelineStages
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.events import CacheChanged, Finished
from blis_sim.engine.kv_cache.changes import CpuBlocksRemoved, CpuBlockStored, DeviceBlockStored
from blis_sim.engine.kv_cache.offload_tier import Lookup, OffloadTier, Place, RequestUse
from blis_sim.engine.memory.kv_groups import FULL, SLIDING, KVCacheGroupSpec
from blis_sim.engine.offloading import Device, OffloadConfig
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.speculation import Speculation
from blis_sim.engine.units import Micros
from tests.fakes import TestLatency, config, request
from workshop.vllm_oracle.features import drawn_workload
from workshop.vllm_oracle.simulated import simulated_story
from workshop.vllm_oracle.workload import ScheduledStep

STEP_US = 1_000
LIMITS: dict[str, Any] = {"engine": "vllm", "total_kv_blocks": 12, "max_model_len": 44, "max_num_batched_tokens": 64}


def engine(offload: OffloadConfig | None, **settings: Any) -> Engine:
    limits = config(**{**LIMITS, **settings, "offload": offload})
    return Engine(limits, TestLatency(step_us=STEP_US, prefill_token_us=100))


def visits(simulated: Engine, *arrivals: tuple[Micros, str, int]) -> list[Finished]:
    """Let prompts of 24 tokens arrive whose first blocks, so many, are those of a group."""
    requests = [
        (at, request(f"{group}{place}", 24, 1, PrefixGroupBlocks(f"{group}{place}", group, num_shared)))
        for place, (at, group, num_shared) in enumerate(arrivals)
    ]
    return [event for event in run_virtual(simulated, requests) if isinstance(event, Finished)]


EVICTING = ((0, "a", 5), (100_000, "b", 5), (200_000, "c", 5), (300_000, "a", 5))
"""The last finds its first 5 blocks overwritten, for the cache has room for 11."""


@pytest.mark.parametrize("is_async", [True, False])
def test_a_prompt_that_was_evicted_is_loaded_and_only_its_rest_computed(is_async: bool) -> None:
    without = visits(engine(None, async_scheduling=is_async), *EVICTING)[-1]
    loaded = visits(engine(OffloadConfig(100, 50.0), async_scheduling=is_async), *EVICTING)[-1]
    assert without.sequence.num_cached_tokens == 0
    assert (loaded.sequence.num_cached_tokens, loaded.sequence.num_external_tokens) == (20, 20)
    assert without.at == 300_000 + STEP_US + 24 * 100
    assert loaded.at == 300_000 + 5 * 50 + STEP_US + 4 * 100


def test_a_load_takes_as_long_as_its_blocks_take_one_after_the_other() -> None:
    ends = [visits(engine(OffloadConfig(100, float(us))), *EVICTING)[-1].at for us in (1, 1_001, 3_001)]
    assert [end - ends[0] for end in ends] == [0, 5_000, 15_000]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_load_begins_when_the_step_that_goes_with_it_is_computed(is_async: bool) -> None:
    """The second `a` finds one block on the GPU and loads four, composed together with the only step of `d`."""
    arrivals = [*EVICTING[:3], (300_000, "d", 0), (300_000, "a", 5)]
    simulated = engine(OffloadConfig(100, 50.0), async_scheduling=is_async, total_kv_blocks=20)
    ends = {event.sequence.request.id: event for event in visits(simulated, *arrivals)}
    step_ends_at = 300_000 + STEP_US + 24 * 100
    assert ends["d3"].at == step_ends_at
    assert ends["a4"].sequence.num_external_tokens == 16
    assert ends["a4"].at == step_ends_at + 4 * 50 + STEP_US + 4 * 100


def test_a_prompt_found_whole_computes_its_last_token() -> None:
    simulated = engine(OffloadConfig(100, 5.0))
    arrivals = [
        (at, request(f"{name}{at}", 24, 1, PrefixGroupBlocks(name, name, 6)))
        for at, name in ((0, "a"), (100_000, "b"), (200_000, "c"), (300_000, "a"))
    ]
    ends = [event for event in run_virtual(simulated, arrivals) if isinstance(event, Finished)]
    assert ends[-1].sequence.num_external_tokens == 23
    assert ends[-1].at == 300_000 + 6 * 5 + STEP_US + 100


def test_blocks_still_in_gpu_memory_are_not_loaded() -> None:
    simulated = engine(OffloadConfig(100, 50.0))
    again = visits(simulated, (0, "a", 5), (100_000, "a", 5))[-1]
    assert (again.sequence.num_cached_tokens, again.sequence.num_external_tokens) == (20, 0)
    assert (simulated.kv.hit_tokens, simulated.kv.queried_tokens) == (20, 48)


def test_blocks_without_room_in_cpu_memory_are_lost() -> None:
    assert visits(engine(OffloadConfig(6, 50.0)), *EVICTING)[-1].sequence.num_external_tokens == 0
    small = visits(engine(OffloadConfig(17, 50.0)), *EVICTING)[-1]
    assert small.sequence.num_external_tokens == 20, "the last blocks of the request used least recently go first"


def test_a_request_waits_for_blocks_that_are_on_their_way_to_cpu_memory() -> None:
    """The copy of the prompt before it begins when its step has ended and takes 6 times 10 ms."""
    arrivals = ((0, "a", 5), (1_000, "b", 5), (6_000, "c", 5), (12_000, "a", 5))
    last = visits(engine(OffloadConfig(100, 10_000.0), max_num_seqs=1), *arrivals)[-1]
    assert last.sequence.num_external_tokens == 20
    stored_at = STEP_US + 2_400 + 6 * 10_000
    assert last.at == stored_at + 5 * 10_000 + STEP_US + 400


def test_others_run_while_a_request_waits_for_its_load() -> None:
    arrivals = [*EVICTING, (300_001, "d", 0)]
    ends = {event.sequence.request.id: event.at for event in visits(engine(OffloadConfig(100, 20_000.0)), *arrivals)}
    assert ends["d4"] < 310_000 < 400_000 < ends["a3"]


def test_a_client_that_hangs_up_during_its_load_leaves_nothing() -> None:
    simulated = engine(OffloadConfig(100, 20_000.0))
    for at, group in ((0, "a"), (100_000, "b"), (200_000, "c"), (300_000, "d")):
        simulated.submit(request(f"{group}{at}", 24, 1, PrefixGroupBlocks(f"{group}{at}", group, 5)), at)
    simulated.submit(request("again", 24, 1, PrefixGroupBlocks("again", "a", 5)), 500_000)
    simulated.abort("again", 520_000)
    simulated.advance(10**7)
    assert simulated.next_event_at() is None
    assert simulated.stats.kv_blocks_used == 0
    simulated.check_integrity()


@pytest.mark.parametrize("is_async", [True, False])
def test_random_runs_end_and_hold_no_block(is_async: bool) -> None:
    for seed in range(25):
        draws = random.Random(seed)
        simulated = engine(
            OffloadConfig(draws.randint(5, 200), draws.choice([0.0, 10.0, 200.0, 3000.0])),
            total_kv_blocks=draws.randint(26, 60), max_model_len=96, max_num_seqs=6, max_num_batched_tokens=32,
            long_prefill_token_threshold=draws.choice([0, 0, 7]), async_scheduling=is_async,
        )  # fmt: skip
        at, arrivals = 0, []
        for n in range(40):
            blocks = PrefixGroupBlocks(f"r{n}", f"g{draws.randrange(6)}", draws.randint(1, 10))
            arrivals.append((at, request(f"r{n}", draws.randint(9, 60), draws.randint(1, 30), blocks)))
            at += draws.randint(0, 30_000)
        ends = [event for event in run_virtual(simulated, arrivals) if isinstance(event, Finished)]
        assert len(ends) == 40
        simulated.check_integrity()
        assert simulated.kv.num_used_blocks == 0


def places(num_blocks: int) -> list[Place]:
    """The places of the first blocks of a request, of one token each."""
    return [(end, 0) for end in range(1, num_blocks + 1)]


def test_of_two_groups_the_last_block_of_the_later_one_is_kept_longer() -> None:
    tier, use = OffloadTier(4), RequestUse()
    names = ["a0", "b0", "a1", "b1"]
    ends = [(1, 0), (2, 0), (1, 1), (2, 1)]
    stored = tier.store(names, ends, use)
    assert stored == names
    tier.stored(stored, 0)
    assert tier.store(["x"], [(1, 0)], RequestUse()) == ["x"]
    assert [name for name in names if tier.lookup(name) is Lookup.MISS] == ["b0"]


def test_the_last_blocks_of_the_request_used_least_recently_are_evicted_first() -> None:
    tier, first, second = OffloadTier(5), RequestUse(), RequestUse()
    for use, names in ((first, "abc"), (second, "de")):
        stored = tier.store(list(names), places(len(names)), use)
        assert stored == list(names)
        tier.stored(stored, 0)
    tier.finish(second)
    tier.finish(first)
    assert tier.store(["x", "y", "z"], places(3), RequestUse()) == ["x", "y", "z"]
    assert [name for name in "abcdexyz" if tier.lookup(name) is not Lookup.MISS] == ["a", "b", "x", "y", "z"]
    assert tier.lookup("x") is Lookup.PENDING
    assert tier.store(["p", "q", "r"], places(3), RequestUse()) is None, "what is on its way stays"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"engine": "blis"}, "KV blocks are offloaded with engine vllm only, got blis"),
    (
        {
            "enable_prefix_caching": False,
            "kv_groups": (KVCacheGroupSpec(FULL, 4), KVCacheGroupSpec(SLIDING, 8, 16)),
            "total_kv_blocks": 60,
        },
        "KV blocks of several sizes are offloaded only with enable_prefix_caching, which aligns them",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_vllm_refuses_is_refused_in_a_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError) as raised:
        engine(OffloadConfig(5, 1.0), **settings)
    assert str(raised.value) == message


def test_drafts_find_blocks_in_cpu_memory_by_the_own_tokens_of_these() -> None:
    """As vLLM's connectors do, whatever is asked of the names of blocks."""
    drafts = Speculation(method="mtp", num_tokens=2, acceptance_rates=(0.5, 0.5))
    assert drafts.num_hash_lookahead_tokens == 1
    plain, offloading = config(**LIMITS, speculation=drafts), engine(OffloadConfig(5, 1.0), speculation=drafts).config
    assert (plain.num_hash_lookahead_tokens, offloading.num_hash_lookahead_tokens) == (1, 0)


def test_cpu_memory_holds_a_block_at_least() -> None:
    with pytest.raises(EngineError, match="num_blocks must be at least 1"):
        OffloadConfig(0, 1.0)


@pytest.mark.parametrize("pipeline", [None, PipelineStages((0.5, 0.5))])
@pytest.mark.parametrize("is_async", [True, False])
def test_blocks_that_come_to_cpu_memory_and_leave_it_are_reported_though_the_engine_is_idle(
    pipeline: PipelineStages | None, is_async: bool
) -> None:
    simulated = engine(
        OffloadConfig(7, 10_000.0), reports_kv_changes=True, pipeline=pipeline, async_scheduling=is_async
    )
    arrivals = [(at, request(name, 24, 1, PrefixGroupBlocks(name, name, 5))) for at, name in ((0, "a"), (500_000, "b"))]
    changes = [
        (event.at, change)
        for event in run_virtual(simulated, arrivals)
        if isinstance(event, CacheChanged)
        for change in event.changes
    ]
    stored = [at for at, change in changes if isinstance(change, CpuBlockStored)]
    removed = [len(change.identities) for _, change in changes if isinstance(change, CpuBlocksRemoved)]
    first_at = STEP_US + 24 * 100
    assert stored == [first_at + 6 * 10_000] * 6 + [500_000 + first_at + 6 * 10_000] * 6
    assert removed == [5]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_device_reports_the_blocks_that_came_to_it_where_its_settings_say_so(is_async: bool) -> None:
    quiet = Device(read_bytes_us=1.0, write_bytes_us=1.0, base_us=1_000)
    telling = replace(quiet, base_us=20_000, reports_writes=True, locality="REMOTE")
    offload = OffloadConfig(7, 10_000.0, devices=(quiet, telling))
    simulated = engine(offload, reports_kv_changes=True, async_scheduling=is_async)
    found = [
        (event.at, change)
        for event in run_virtual(simulated, [(0, request("a", 24, 1, PrefixGroupBlocks("a", "a", 5)))])
        if isinstance(event, CacheChanged)
        for change in event.changes
        if isinstance(change, DeviceBlockStored)
    ]
    written_at = STEP_US + 24 * 100 + 6 * 10_000 + 6 * 20_000
    assert [(at, change.locality) for at, change in found] == [(written_at, "REMOTE")] * 6


def test_an_idle_core_composes_again_when_loads_have_begun() -> None:
    """The request r10 loads blocks of r11, and the idle core looks again. Then r12 goes before r11, as in vLLM."""
    story = simulated_story(drawn_workload(2038, False, ["drafts", "offloading"]))
    steps = [line for line in story.lines if isinstance(line, ScheduledStep) and line.at == 79_050]
    assert [step.tokens for step in steps if step.tokens] == [(("r12", 252),)]
