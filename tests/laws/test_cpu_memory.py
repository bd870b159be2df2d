"""CPU memory for KV blocks goes with groups of layers, drafts and pipeline stages: laws on random workloads."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.offloading import Device, OffloadConfig
from blis_sim.engine.request import PrefixGroupBlocks
from blis_sim.engine.scheduler.vllm import VllmScheduler
from tests import fakes
from tests.examples import examples
from workshop.vllm_oracle.features import drawn_workload
from workshop.vllm_oracle.simulated import changes, requests_of
from workshop.vllm_oracle.workload import Workload

NUM_SEEDS = max(2, examples(8))
"""Workloads of each kind: steps of one are asynchronous, of the next synchronous."""
FEATURES = [
    "offloading windows",
    "offloading chunks drafts",
    "offloading states drafts",
    "offloading latent 2-stages",
    "offloading drafts 2-stages",
    "tiers",
    "tiers windows",
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("is_async", [False, True])
def test_every_request_ends_once_and_nothing_stays_held(features: str, seed: int, is_async: bool) -> None:
    workload = drawn_workload(seed, is_async, features.split())
    engine = Engine(workload.config, workload.latency)
    for request, at in requests_of(workload):
        engine.submit(request, at)
    ended: list[str] = []
    scheduler, offload = engine._scheduler, workload.config.offload
    assert isinstance(scheduler, VllmScheduler)
    assert offload is not None
    while (due_at := engine.next_event_at()) is not None:
        ended += [event.sequence.request.id for event in engine.advance(due_at) if isinstance(event, Finished)]
        engine.check_integrity()
        assert scheduler._offloader is not None
        assert scheduler._offloader.num_blocks <= offload.num_blocks
    assert sorted(ended) == sorted(arrival.id for arrival in workload.arrivals)
    assert engine.stats.kv_blocks_used == 0


@pytest.mark.parametrize("features", FEATURES)
def test_steps_that_are_not_reported_are_the_same(features: str) -> None:
    workload = drawn_workload(7, True, features.split())
    assert changes(workload, reports_steps=True) == changes(workload, reports_steps=False)


def told(engine: Engine, asks_anew: bool) -> tuple[tuple[object, ...], int]:
    """All that an engine reports of its requests; with `asks_anew` each composition looks up all that waits.

    And how often a look-up was remembered.
    """
    offloader = engine._scheduler._offloader  # type: ignore[attr-defined]
    ended: list[tuple[object, ...]] = []
    num_known = 0
    while (due_at := engine.next_event_at()) is not None:
        done = [event for event in engine.advance(due_at) if isinstance(event, Finished)]
        ended += [(each.at, each.sequence.request.id, each.outcome, each.sequence.num_cached_tokens) for each in done]
        for request in offloader._requests.values():
            num_known += request.known is not None
            if asks_anew:
                request.known = None
    steps = [(engine.steps.start(index), engine.steps.end(index)) for index in range(len(engine.steps))]
    assert not offloader._watchers, "requests that have ended watch blocks"
    return (ended, steps, engine.counters.offload, offloader.num_behind), num_known


def remembers(new_engine: Callable[[], Engine]) -> bool:
    """Whether look-ups were remembered, which must change nothing."""
    remembered, num_known = told(new_engine(), asks_anew=False)
    anew, _ = told(new_engine(), asks_anew=True)
    assert remembered == anew
    return num_known > 0


def drawn_engine(workload: Workload) -> Engine:
    engine = Engine(workload.config, workload.latency)
    for request, at in requests_of(workload):
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    return engine


@pytest.mark.parametrize("features", FEATURES)
def test_what_look_ups_remember_changes_nothing(features: str) -> None:
    workloads = [drawn_workload(seed, seed % 2 > 0, features.split()) for seed in range(16, 16 + NUM_SEEDS)]
    assert sum(remembers(partial(drawn_engine, each)) for each in workloads), "no look-up was remembered"


def crowded_engine(seed: int) -> Engine:
    """An engine whose prompts displace each other from CPU memory, while they come from a slow device."""
    device = Device(read_bytes_us=1.0, write_bytes_us=1.0, base_us=3_000)
    offload = OffloadConfig(10, 50.0, stored_bytes=1.0, devices=(device,))
    limits: dict[str, Any] = {"total_kv_blocks": 14, "max_model_len": 44, "max_num_batched_tokens": 64}
    engine = Engine(
        fakes.config(engine="vllm", offload=offload, **limits), fakes.TestLatency(step_us=1_000, prefill_token_us=50)
    )
    draws = random.Random(seed)
    at = 0
    for number in range(60):
        at += draws.choice([0, 500, 5_000, 40_000])
        group, num_shared = f"g{draws.randrange(5)}", draws.randint(3, 9)
        blocks = PrefixGroupBlocks(f"r{number}", group, num_shared)
        engine.submit(fakes.request(f"r{number}", 40, draws.randint(1, 4), blocks), at)
    return engine


def test_what_look_ups_remember_changes_nothing_where_they_displace_what_they_found() -> None:
    assert sum(remembers(partial(crowded_engine, seed)) for seed in range(12)) == 12
