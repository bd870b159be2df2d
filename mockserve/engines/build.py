"""The simulated engines of a server: one for each data-parallel rank, each with a driver and counters of its own."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.latency.wrapped import SlowedLatency
from blis_sim.engine.step_log import RecentSteps
from mockserve.engines.deployment import with_features
from mockserve.kv_blocks.setup import open_publisher
from mockserve.metrics.engine import EngineMetrics
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.realtime.driver import RealtimeDriver
from mockserve.realtime.instance import InstanceDriver
from mockserve.realtime.ranks import RankedDriver
from mockserve.realtime.wire import Wire

if TYPE_CHECKING:
    from mockserve.kv_blocks.events import KVEventPublisher


STEPS_KEPT = 65_536
"""Steps whose times a server still knows: nothing that it answers needs them."""


@dataclass(frozen=True, slots=True)
class RankEngine:
    """One rank, or one instance of a cluster."""

    driver: RealtimeDriver | InstanceDriver
    metrics: EngineMetrics
    latency: SlowedLatency
    kv_events: "KVEventPublisher | None"
    dies_alone: bool = False
    """Whether the others go on when it dies."""


def build_engines(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: Wire
) -> Mapping[int, RankEngine]:
    """All ranks by number, whose clocks start now. Raises OptionError when KV events cannot be published."""
    config, latency_model = with_features(options, deployment)
    origin_s = time.monotonic()
    ranks: dict[int, RankEngine] = {}
    for rank in range(options.deployment.dp):
        latency = SlowedLatency(latency_model)
        metrics = EngineMetrics(deployment.config.limit_tokens)
        engine = Engine(config, latency, steps=RecentSteps(STEPS_KEPT))
        driver = RealtimeDriver(engine, metrics, wire, options.speed, origin_s=origin_s)
        rank_number = options.kv_sharing.data_parallel_rank + rank
        publisher = open_publisher(options.kv_sharing, environment, config, rank_number)
        if publisher is not None:
            driver.output.tell_cache_changes = publisher.publish
        ranks[rank] = RankEngine(driver, metrics, latency, publisher)
    return ranks


def driver_of(ranks: Mapping[int, RankEngine]) -> RealtimeDriver | RankedDriver:
    """What requests are handed to."""
    drivers = [rank.driver for rank in ranks.values() if isinstance(rank.driver, RealtimeDriver)]
    return drivers[0] if len(drivers) == 1 else RankedDriver(drivers)
