"""The scorer that counts cached tokens, free tokens and free places."""

from typing import Any

import pytest

from blis_sim.engine.cluster.assembly import build_cluster
from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.gateway import FlowControl
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.scorers import SCORERS, ScorerSettings
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.request import PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.options import options_from
from tests.fakes import TestLatency, config

LIMITS: dict[str, Any] = {"engine": "vllm", "total_kv_blocks": 101, "max_num_seqs": 2, "max_model_len": 200}


def cluster(*limits: dict[str, Any], **settings: Any) -> Cluster:
    options = options_from(
        ClusterOptions,
        model="qwen/qwen3-14b",
        num_instances=len(limits),
        routing_policy="weighted",
        routing_scorers="cache-utilisation:1",
        snapshot_refresh_interval=0,
        cache_signal_delay=0,
        **settings,
    )
    configs = iter(limits)
    return build_cluster(
        options, resolve(options.deployment), lambda _: Engine(config(**(LIMITS | next(configs))), TestLatency())
    )


def grouped(name: str, group: str) -> Request:
    return Request(name, 40, 5, PrefixGroupBlocks(name, group, 10), 5)


def scores(of: Cluster, request: Request) -> list[float]:
    return list(SCORERS["cache-utilisation"](ScorerSettings()).score(request, of.state))


def test_a_cached_prompt_outweighs_free_places() -> None:
    both = cluster({}, {})
    both.submit(grouped("first", "a"), 0, instance=1)
    both.advance(100_000)
    both.refresh_snapshots(100_000)
    assert scores(both, grouped("second", "a")) == [0.5, 1.0]
    assert scores(both, Request("other", 40, 5, UniqueBlocks("other"), 5)) == [1.0, 1.0]


def test_a_place_is_taken_when_a_request_is_sent() -> None:
    both = cluster({}, {})
    for number in range(4):
        both.submit(Request(f"r{number}", 40, 50, UniqueBlocks(f"r{number}"), 50), 0)
    both.advance(0)
    assert sorted(both.instance_of(f"r{number}") for number in range(4)) == [0, 0, 1, 1]


def test_an_instance_that_cannot_hold_the_prompt_is_passed_over() -> None:
    uneven = cluster({"total_kv_blocks": 11, "max_model_len": 0}, {"total_kv_blocks": 101, "max_num_seqs": 1})
    uneven.submit(Request("busy", 40, 50, UniqueBlocks("busy"), 50), 0, instance=1)
    uneven.advance(10)
    uneven.refresh_snapshots(10)
    assert scores(uneven, Request("long", 60, 5, UniqueBlocks("long"), 5)) == [0.0, 0.0]
    uneven.advance(10**6)
    uneven.refresh_snapshots(10**6)
    assert scores(uneven, Request("long", 60, 5, UniqueBlocks("long"), 5)) == [0.0, 1.0]


@pytest.mark.parametrize("detector", ["never", "places"])
def test_a_gateway_holds_requests_until_a_place_is_free(detector: str) -> None:
    gated = cluster({}, {}, flow_control=True, saturation_detector=detector, dispatch_tick_interval=0)
    for number in range(6):
        gated.submit(Request(f"r{number}", 40, 50, UniqueBlocks(f"r{number}"), 50), number)
    gated.advance(10_000)
    waiting = [engine.stats.num_waiting for engine in gated.instances]
    gateway = gated.part(FlowControl)
    assert gateway is not None
    assert (gateway.num_waiting, sum(waiting)) == ((2, 0) if detector == "places" else (0, 2))
