"""The engines behind a server: one per data-parallel rank, instances behind a router, or those of another process."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.latency.joint_steps import joined
from blis_sim.engine.latency.wrapped import SlowedLatency
from blis_sim.engine.ranks import RankGroup
from blis_sim.engine.step_log import RecentSteps
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from mockserve.engines.deployment import StructuredOutputBackend, with_features
from mockserve.kv_events.setup import open_publisher
from mockserve.metrics.cache_config import cache_config_labels
from mockserve.metrics.engine import EngineMetrics, Lateness
from mockserve.metrics.page import MeasuredEngine, Metrics, MetricsSource, new_source
from mockserve.metrics.server import ToolParsing
from mockserve.options.environment import ServerEnvironment
from mockserve.options.fake_metrics import read_fake_metrics
from mockserve.options.serve import ServeOptions
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver
from mockserve.realtime.deliveries import EngineOutput, WriteCoalescer
from mockserve.realtime.driver import RealtimeDriver
from mockserve.realtime.interface import Driver
from mockserve.realtime.rank_group import RankDriver, RankGroupDriver
from mockserve.realtime.ranks import RankedDriver
from mockserve.transport.clients import SlowReaders

if TYPE_CHECKING:
    from mockserve.kv_events.events import KVEventPublisher


STEPS_KEPT = 65_536
"""Steps whose times a server keeps; no reply needs them."""


@dataclass(frozen=True, slots=True)
class RankEngine:
    """One rank, or one instance of a cluster."""

    driver: RealtimeDriver | InstanceDriver | RankDriver
    metrics: EngineMetrics
    latency: SlowedLatency
    kv_events: "KVEventPublisher | None"
    dies_alone: bool = False
    """Whether the others go on when it dies."""


def build_engines(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: WriteCoalescer
) -> Mapping[int, RankEngine]:
    """All ranks by number, whose clocks start now. Raises OptionError when KV events cannot be published."""
    config, latency_model = with_features(options, deployment)
    if deployment.rank is not None and config.timing is None:
        return _ranks_in_lockstep(options, deployment, environment, wire)
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
            driver.output.on_cache_changes = publisher.publish
        ranks[rank] = RankEngine(driver, metrics, latency, publisher)
    return ranks


def _ranks_in_lockstep(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: WriteCoalescer
) -> Mapping[int, RankEngine]:
    """Return ranks that share experts, by number. Raises OptionError when KV events cannot be published."""
    config, model = with_features(options, deployment)
    shared, steps = joined(model)
    latencies = [SlowedLatency(shared) for _ in range(options.deployment.dp)]
    engines = [Engine(config, latency, steps=RecentSteps(STEPS_KEPT)) for latency in latencies]
    metrics = [EngineMetrics(config.limit_tokens) for _ in engines]
    outputs = {rank: EngineOutput(engine, metrics[rank]) for rank, engine in enumerate(engines)}
    driver = RankGroupDriver(RankGroup(engines, steps), outputs, wire, options.speed)
    ranks: dict[int, RankEngine] = {}
    for rank, engine in enumerate(engines):
        publisher = open_publisher(
            options.kv_sharing, environment, config, options.kv_sharing.data_parallel_rank + rank
        )
        if publisher is not None:
            outputs[rank].on_cache_changes = publisher.publish
        ranks[rank] = RankEngine(RankDriver(driver, rank, engine), metrics[rank], latencies[rank], publisher)
    return ranks


def driver_of(ranks: Mapping[int, RankEngine]) -> RealtimeDriver | RankedDriver:
    """The driver that takes requests."""
    if isinstance(first := ranks[0].driver, RankDriver):
        return first.whole
    drivers = [rank.driver for rank in ranks.values() if isinstance(rank.driver, RealtimeDriver)]
    return drivers[0] if len(drivers) == 1 else RankedDriver(drivers)


class LiveCluster:
    """Return the engines, the router and all behind it; the clock starts now. Raises OptionError when KV events cannot
    be published."""

    def __init__(
        self, options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: WriteCoalescer
    ) -> None:
        # Admission, gateway, separate pools and autoscaling take 20 ms to load, which one instance does not need.
        from blis_sim.engine.cluster.assembly import build_cluster

        self.engines: dict[int, RankEngine] = {}
        """The instances that are there, by number."""
        self.num_made = 0
        """Number of the instance that comes next."""
        self.on_joined: Callable[[int], None] = _ignore
        """Called with the number of each instance that comes later."""
        self.on_removed: Callable[[int, RankEngine, InstanceState], None] = _ignore_removed
        """Called with the number of each instance that has been removed, its engine, and how it came to its end."""
        self._options = options
        self._environment = environment
        self._outputs: dict[int, EngineOutput] = {}
        self._first_deployment: Deployment | None = None
        self._is_running = False
        cluster = build_cluster(options.cluster, deployment, self._new_engine, keeps_history=False)
        self.driver = ClusterDriver(cluster, self._outputs, wire, options.speed)
        self.driver.on_removed = self._remove
        for number in self._outputs:
            self._join(number)
        self._is_running = True

    async def add(self, after_us: Micros) -> int:
        """One more instance, like the first one; it takes requests from then on. Returns its number.

        Raises OptionError where instances are not all alike.
        """
        from blis_sim.engine.cluster.policies import policies_of

        if self.driver.cluster.disaggregation is not None:
            raise OptionError("instances cannot be added where some compute prompts and others answer")
        if policies_of(self._options.cluster).scaling.node_pools:
            raise OptionError("instances cannot be added by hand where they are placed on the machines of node_pools")
        assert self._first_deployment is not None
        number = self.num_made
        await self.driver.add(self._new_engine(self._first_deployment), after_us)
        return number

    def _new_engine(self, deployment: Deployment) -> Engine:
        """The engine of the instance that comes next."""
        config, latency = with_features(self._options, deployment)
        engine = Engine(config, SlowedLatency(latency), steps=RecentSteps(STEPS_KEPT))
        self._first_deployment = self._first_deployment or deployment
        number = self.num_made
        self.num_made += 1
        self._outputs[number] = EngineOutput(engine, EngineMetrics(deployment.config.limit_tokens))
        if self._is_running:
            self._join(number)
            self.on_joined(number)
        return engine

    def _join(self, number: int) -> None:
        output = self._outputs[number]
        metrics, latency = output.recorder, output.engine.latency
        assert isinstance(metrics, EngineMetrics)
        assert isinstance(latency, SlowedLatency)
        publisher = open_publisher(self._options.kv_sharing, self._environment, output.engine.config, number)
        if publisher is not None:
            output.on_cache_changes = publisher.publish
        driver = InstanceDriver(self.driver, number, output.engine)
        self.engines[number] = RankEngine(driver, metrics, latency, publisher, dies_alone=True)

    def _remove(self, number: int, state: InstanceState) -> None:
        engine = self.engines.pop(number)
        if engine.kv_events is not None:
            engine.kv_events.close()
        self.on_removed(number, engine, state)
        engine.driver.engine.release()


def _ignore(_number: int) -> None:
    """No-op default."""


def _ignore_removed(_number: int, _engine: RankEngine, _life: InstanceState) -> None:
    """No-op default."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The source of tokens with its driver, engines and metrics."""

    wire: WriteCoalescer
    driver: Driver
    metrics_source: Metrics
    slow_readers: SlowReaders
    engines: Mapping[int, RankEngine] = field(default_factory=dict)
    """Engines of this process, by rank or by number of instance."""
    cluster: LiveCluster | None = None
    """The instances behind a router, if there is one."""
    request_numbers: Iterator[int] = field(default_factory=itertools.count)
    """Return a prefix for the ids of requests, unique among all processes of the server."""
    structured_outputs: StructuredOutputBackend | None = None
    """The structured-output backend that the server's processes share; None in a server of one process."""


def local_backend(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> Backend:
    """Engines in this process, whose clocks start now."""
    wire = WriteCoalescer(Lateness(), is_timed=not math.isinf(options.speed))
    slow_readers = SlowReaders(options.network.max_unsent_kib * 1024)
    if options.serves_cluster:
        cluster = LiveCluster(options, deployment, environment, wire)
        source = source_of(options, deployment, cluster.engines, wire.lateness, slow_readers)
        return Backend(wire, cluster.driver, source, slow_readers, cluster.engines, cluster=cluster)
    engines = build_engines(options, deployment, environment, wire)
    source = source_of(options, deployment, engines, wire.lateness, slow_readers)
    return Backend(wire, driver_of(engines), source, slow_readers, engines)


def source_of(
    options: ServeOptions,
    deployment: Deployment,
    engines: Mapping[int, RankEngine],
    lateness: Lateness,
    slow_readers: SlowReaders,
) -> MetricsSource:
    """The source of the metrics of `engines`."""
    return new_source(
        options.model_names[0],
        {number: MeasuredEngine(each.driver, each.metrics) for number, each in engines.items()},
        cache_config_labels(options, deployment),
        lateness,
        read_fake_metrics(options.process.fake_metrics),
        slow_readers,
        None if options.content.tools.tool_call_parser is None else ToolParsing(),
    )
