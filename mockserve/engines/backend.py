"""Where the tokens of a server come from, and where its figures go: engines of its own, or some in another process."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from blis_sim.engine.deployment import Deployment
from mockserve.connections.slow_readers import SlowReaders
from mockserve.engines.build import RankEngine, build_engines, driver_of
from mockserve.engines.cluster import LiveCluster
from mockserve.engines.deployment import StructuredOutputBackend
from mockserve.metrics.cache_config import cache_config_labels
from mockserve.metrics.histogram import Lateness
from mockserve.metrics.operations import ToolParsing
from mockserve.metrics.page import MeasuredEngine, Metrics, MetricsSource, new_source
from mockserve.options.environment import ServerEnvironment
from mockserve.options.fake_metrics import read_fake_metrics
from mockserve.options.serve import ServeOptions
from mockserve.realtime.interface import Driver
from mockserve.realtime.wire import Wire


@dataclass(frozen=True, slots=True)
class Backend:
    """Where tokens come from, and who counts what is done with them."""

    wire: Wire
    driver: Driver
    metrics_source: Metrics
    slow_readers: SlowReaders
    engines: Mapping[int, RankEngine] = field(default_factory=dict)
    """Engines of this process, by rank or by number of instance."""
    cluster: LiveCluster | None = None
    """What has a router in front, if it has one."""
    request_numbers: Iterator[int] = field(default_factory=itertools.count)
    """For the ids of requests, unique among all processes of the server."""
    structured_outputs: StructuredOutputBackend | None = None
    """What the processes of the server share; None where there is one process."""


def local_backend(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> Backend:
    """Engines in this process, whose clocks start now."""
    wire = Wire(Lateness(), is_timed=not math.isinf(options.speed))
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
    """Who reads the metrics of `engines`."""
    return new_source(
        options.model_names[0],
        {number: MeasuredEngine(each.driver, each.metrics) for number, each in engines.items()},
        cache_config_labels(options, deployment),
        lateness,
        read_fake_metrics(options.process.fake_metrics),
        slow_readers,
        None if options.content.tools.tool_call_parser is None else ToolParsing(),
    )
