"""Served requests with deadlines and priorities are scheduled as in the replay of their recording."""

import asyncio
from typing import Any

import pytest

from blis_sim.engine.cluster.assembly import build_cluster
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.events import Finished
from blis_sim.engine.latency.blackbox import AdaptiveToy
from blis_sim.engine.request import PrefixGroupBlocks, Request
from blis_sim.engine.simulation import run_virtual
from blis_sim.engine.speculation import Speculation, SpeculationGates
from blis_sim.engine.urgency import UrgencySettings
from blis_sim.options import options_from
from mockserve.realtime.cluster import ClusterDriver
from tests.fakes import config
from tests.mockserve.realtime.listeners import Listener, submit
from tests.mockserve.realtime.test_cluster import LATENCY, driven

POLICIES: dict[str, Any] = {
    "total_kv_blocks": 64,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 64,
    "max_model_len": 96,
    "scheduler": "priority-deadline",
    "priority_policy": "slo-urgency",
    "preemption_policy": "gap",
}
NUM_FIRST = 8
GATES = Speculation(method="ngram", num_tokens=2, acceptance_rates=(0.8, 0.8), gates=SpeculationGates())


def built(policies: dict[str, Any]) -> Cluster:
    options = options_from(
        ClusterOptions,
        model="qwen/qwen3-14b",
        num_instances=4,
        routing_policy="weighted",
        routing_scorers="cache-utilisation:1",
        snapshot_refresh_interval=0,
        cache_signal_delay=0,
    )
    latency = AdaptiveToy() if policies["engine"] == "adaptive" else LATENCY
    return build_cluster(
        options, resolve(options.deployment), lambda _: Engine(config(**{**POLICIES, **policies}), latency)
    )


def workload(number: int) -> list[Request]:
    return [
        Request(
            f"r{n}",
            9 + 7 * n % 40,
            9 + 11 * n % 30,
            PrefixGroupBlocks(f"r{n}", f"g{n % 4}", 2),
            9 + 11 * n % 30,
            priority=(9, 4, 0)[n % 3] if n >= NUM_FIRST else 9,
            slo_e2e_us=(400_000, 90_000, 30_000)[n % 3],
        )
        for n in range(number)
    ]


async def served(driver: ClusterDriver, requests: list[Request]) -> list[Listener]:
    """Let the first arrive, then the others, and wait for all of them."""
    listeners, flights = [Listener() for _ in requests], []
    for number, (each, listener) in enumerate(zip(requests, listeners, strict=True)):
        flights.append(submit(driver, each, listener))
        await asyncio.sleep(0.01 if number == NUM_FIRST - 1 else 0)  # the first have places when the others come
    await asyncio.gather(*(listener.done.wait() for listener in listeners))
    assert [listener.failure for listener in listeners] == [None] * len(listeners)
    return flights


@pytest.mark.parametrize(
    "policies",
    [
        {"engine": "vllm"},
        {"engine": "vllm", "urgency": UrgencySettings(keeps_progress=True, interval_us=1000)},
        {"engine": "vllm", "speculation": GATES},
        {"engine": "adaptive", "speculation": GATES, "timer_us": 1080},
    ],
    ids=["recompute", "keep", "gated drafts", "adaptive"],
)
async def test_four_instances_serve_in_the_order_of_the_replay(policies: dict[str, Any]) -> None:
    cluster = built(policies)
    driver, _ = driven(cluster, speed=4.0)
    flights = await served(driver, workload(48))
    driver.close()
    replay = built(policies)
    arrivals = [(flight.arrived_at, flight.request) for flight in flights]
    ends = [event for event in run_virtual(replay, arrivals) if isinstance(event, Finished)]
    assert {flight.request.id: flight.last_token_at for flight in flights} == {
        event.sequence.request.id: event.at for event in ends
    }
    counters = [engine.counters.num_preemptions for engine in cluster.instances]
    assert counters == [engine.counters.num_preemptions for engine in replay.instances]
    assert sum(counters) > 0
