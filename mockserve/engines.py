"""The engines behind a server, built from its options: ranks, instances behind a router, or remote engines."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import RecentSteps
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import IndependentRanks, LockstepRanks, RankGroup, new_ranks
from blis_sim.engine.deployment import DEFAULT_GPU, Deployment, is_known, model_of, resolve, with_stand_ins
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.hf_config import ROPE_KEYS, context_window
from blis_sim.engine.latency.blackbox import InstantLatency
from blis_sim.engine.latency.catalogue import has_model, is_path
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS
from blis_sim.engine.latency.wrapped import ApiServers, BalancedRanks, JointSteps, SlowedLatency, with_joint_steps
from blis_sim.engine.memory.planner import bytes_per_block
from blis_sim.engine.offload_file import OffloadFile, read_offload, with_chain
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError, StartError
from blis_sim.options.custom_metrics import custom_metrics
from mockserve.http.connection import SlowReaders
from mockserve.kv_events.setup import KVTransfer, open_publisher
from mockserve.metrics.counters import HOST, PEER, UNSPECIFIED, EngineMetrics, Lateness, ToolParsing
from mockserve.metrics.families import cache_config_labels
from mockserve.metrics.page import IterationLog, MeasuredEngine, Metrics, MetricsSource, new_source
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServedDeploymentOptions, ServeOptions
from mockserve.options.server import GENERATING_TASKS, config_overrides, read_fake_metrics, tasks_of
from mockserve.protocol.errors import ApiError, mark_late
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver, RankDriver, RankGroupDriver
from mockserve.realtime.driver import Driver, EngineOutput, RealtimeDriver, WriteCoalescer, ignore

if TYPE_CHECKING:
    from mockserve.kv_events.events import KVEventPublisher


class StructuredOutputBackend:
    """The structured-output backend of an engine: the first constrained request chooses it for the engine's lifetime.

    `announce` is called with the backend's name if this process chose it.
    """

    def __init__(self, is_lenient: bool = False, announce: Callable[[str], object] | None = None) -> None:
        """With `is_lenient`, every request may use its own backend."""
        self._is_lenient = is_lenient
        self._announce = announce
        self.name: str | None = None

    def set_name(self, name: str) -> None:
        """Adopt the backend that another process has chosen."""
        self.name = name

    def claim(self, backend: str) -> None:
        """Use the backend of a request. Raises ApiError if the engine uses another backend."""
        if backend == self.name or self._is_lenient:
            return
        if self.name is None:
            self.name = backend
            if self._announce is not None:
                self._announce(backend)
            return
        raise mark_late(
            ApiError(
                "Structured output processing only supports one backend per engine. "
                f"The engine is already using '{self.name}', but this request resolved to '{backend}'. Configure "
                "`structured_outputs_config.backend` explicitly or use schemas supported by the initialized backend."
            )
        )


_MODEL_OF_SET_TIMES = "qwen/qwen3-14b"


def deployment_of(options: ServeOptions) -> Deployment:
    """Return the deployment to simulate. Raises EngineError if model or GPU are unknown or do not fit together."""
    known, notes = _simulated_options(options)
    with_store, file, offload_notes = _with_store(options, known)
    deployment = _with_rank(resolve(with_store)) if options.serves_cluster else _resolved_deployment(with_store)
    deployment = with_chain(file, deployment, options.content.seed)
    window = _overridden_window(options, known) or deployment.model.max_model_len
    model = replace(deployment.model, max_model_len=window)
    deployment = replace(deployment, model=model, notes=(*notes, *offload_notes, *deployment.notes))
    return _with_api_servers(deployment, options.network.num_api_servers)


def _with_api_servers(deployment: Deployment, count: int) -> Deployment:
    """Return the deployment with `count` API server processes."""
    return deployment if count == 1 else replace(deployment, latency=ApiServers(deployment.latency, count))


def simulated_deployment(options: ServeOptions) -> ServedDeploymentOptions:
    """Return the deployment to simulate, with a known model and with the CPU memory of a connector."""
    return _with_store(options, _simulated_options(options)[0])[0]


def _simulated_options(options: ServeOptions) -> tuple[ServedDeploymentOptions, list[str]]:
    """Return the deployment to simulate, and notes. With set times model and GPU hardly matter."""
    deployment = options.deployment
    if not options.timing.sets_times or has_model(deployment.model):
        if is_path(deployment.model) and not is_known(deployment):
            raise StartError(f"--model must name a model or a folder with a config.json, got {deployment.model!r}")
        known, notes = with_stand_ins(deployment)
        return replace(known, max_model_len=known.max_model_len or _overridden_window(options, known)), notes
    gpu, tp = deployment.hardware or DEFAULT_GPU, deployment.tp or 1
    return replace(deployment, model=_MODEL_OF_SET_TIMES, hardware=gpu, tp=tp), []


def _overridden_window(options: ServeOptions, known: DeploymentOptions) -> int:
    """Return the context window that --hf-overrides give the model; 0 where they say nothing about it."""
    overrides = config_overrides(options.routes)
    text = overrides.get("text_config")
    stated = {**overrides, **(text if isinstance(text, Mapping) else {})}
    if stated.keys().isdisjoint(("max_position_embeddings", *ROPE_KEYS)):
        return 0
    model = model_of(known, [])
    return context_window({"max_position_embeddings": model.max_model_len, **stated}, "--hf-overrides")


def _with_store(
    options: ServeOptions, deployment: ServedDeploymentOptions
) -> tuple[ServedDeploymentOptions, OffloadFile | None, list[str]]:
    """Return the deployment with CPU memory and devices of a file or a connector, the file, and notes."""
    if options.offload.kv_offload_config is not None:
        cluster, file, notes = read_offload(options.offload, replace(options.cluster, deployment=deployment))
        return cluster.deployment, file, notes
    transfer = options.kv_sharing.transfer
    if not transfer.has_store:
        return deployment, None, []
    if not deployment.kv_cpu_blocks and deployment.kv_offloading_size is None:
        gib = transfer.offloaded_gib + transfer.offloaded_gib_per_gpu * max(1, deployment.tp)
        deployment = replace(deployment, kv_offloading_size=gib)
    return replace(deployment, kv_devices=transfer.devices), None, []


def _resolved_deployment(options: DeploymentOptions) -> Deployment:
    """Return the deployment of one data-parallel rank; the experts that ranks share make its steps depend on them."""
    if options.dp == 1:
        return resolve(options)
    if model_of(options, []).num_experts <= 1:
        return resolve(replace(options, dp=1, moe_comm_backend=MOE_COMM_BACKENDS[0]))
    together = resolve(options)
    if together.rank is None:
        return together
    if together.pp == 1:
        return replace(together, config=together.rank)
    return replace(
        together,
        config=together.rank,
        latency=BalancedRanks(together.latency, options.dp),
        rank=None,
        notes=(
            *together.notes,
            "warning: with pipeline stages ranks that share experts take their steps apart: each as long as if all "
            "ranks had its batch",
        ),
    )


def _with_rank(deployment: Deployment) -> Deployment:
    """Return the deployment with the configuration of one of its data-parallel ranks, where it has some."""
    if deployment.rank is None or not deployment.has_own_ranks:
        return deployment
    return replace(deployment, config=deployment.rank)


def engine_settings(options: ServeOptions, deployment: Deployment) -> tuple[EngineConfig, LatencyModel]:
    """The engine's configuration and latency model with the settings that only a server has."""
    timing = options.timing.request_timing(deployment.config.max_num_seqs, options.content.seed)
    config = replace(
        deployment.config,
        reports_kv_changes=options.kv_sharing.events.publishes,
        context_kind=deployment.memory.groups[0].kind if deployment.memory else deployment.config.context_kind,
        timing=timing,
        offload=deployment.config.offload if timing is None else None,
        lora=options.lora.settings,
    )
    if not tasks_of(options.routes) & GENERATING_TASKS:
        # A pooling model accepts prompts up to its context, generates no output, and has no asynchronous scheduling.
        config = replace(config, max_model_len=0, async_scheduling=False)
    return config, deployment.latency if timing is None else InstantLatency()


def transfer_of(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> KVTransfer | None:
    """Return this instance's end of KV transfers; None without --kv-transfer-config."""
    transfer = options.kv_sharing.transfer
    if not transfer.is_on:
        return None
    config = deployment.config
    size = bytes_per_block(deployment.model, deployment.tp, config.engine, config.block_size_tokens, deployment.memory)
    return KVTransfer(
        engine_id=transfer.engine_id,
        host=environment.side_channel_host,
        port=environment.side_channel_port,
        tp=deployment.tp,
        num_prompt_blocks=config.num_prompt_blocks,
        # Set times include transfer times.
        bytes_per_block=0 if options.timing.sets_times else size,
        gb_per_s=options.kv_sharing.kv_transfer_gb_per_s,
        latency_us=round(options.kv_sharing.kv_transfer_latency_ms * 1000),
    )


_HOST_CONNECTORS = ("OffloadingConnector", "SimpleCPUOffloadConnector")
_PEER_CONNECTORS = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MoRIIOConnector"),
    "MultiConnector",
)


def external_source(options: ServeOptions) -> str | None:
    """Return the source that vLLM's metrics name for KV blocks from outside the GPU; None without a KV connector."""
    deployment, connector = options.deployment, options.kv_sharing.transfer.connector
    has_memory = deployment.kv_offloading_size is not None or deployment.kv_cpu_blocks > 0
    if has_memory or options.offload.kv_offload_config is not None or connector in _HOST_CONNECTORS:
        return HOST
    if not connector:
        return None
    return PEER if connector in _PEER_CONNECTORS else UNSPECIFIED


STEPS_KEPT = 65_536
"""Steps whose times a server keeps; no reply needs them."""


@dataclass(frozen=True, slots=True)
class RankEngine:
    """One rank, or one instance of a cluster."""

    driver: RealtimeDriver | InstanceDriver | RankDriver
    metrics: EngineMetrics
    latency: SlowedLatency
    kv_events: "KVEventPublisher | None"
    fails_alone: bool = False
    """Whether other engines continue after its failure."""


def _new_metrics(options: ServeOptions, config: EngineConfig) -> EngineMetrics:
    caches_prefixes, has_adapters = config.enable_prefix_caching, options.lora.settings is not None
    return EngineMetrics(config.limit_tokens, external_source(options), caches_prefixes, has_adapters)


def build_engines(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: WriteCoalescer
) -> Mapping[int, RankEngine]:
    """Build all ranks and start their clocks. Raises OptionError if KV events cannot be published."""
    config, model = engine_settings(options, deployment)
    steps: JointSteps | None = None
    if deployment.rank is not None and config.timing is None:
        model, steps = with_joint_steps(model)
    latencies = [SlowedLatency(model) for _ in range(options.deployment.dp)]
    engines = [_logged_engine(options, config, latency) for latency in latencies]
    metrics = [_new_metrics(options, config) for _ in engines]
    outputs, drivers = _rank_drivers(options, engines, metrics, steps, wire)
    ranks: dict[int, RankEngine] = {}
    for rank, driver in enumerate(drivers):
        if _logs_iterations(options):
            outputs[rank].on_batch = IterationLog(rank, engines[rank]).log
        publisher = open_publisher(
            options.kv_sharing, environment, config, options.kv_sharing.data_parallel_rank + rank
        )
        if publisher is not None:
            outputs[rank].on_cache_changes = publisher.publish
        ranks[rank] = RankEngine(driver, metrics[rank], latencies[rank], publisher)
    return ranks


def _logged_engine(options: ServeOptions, config: EngineConfig, latency: LatencyModel) -> Engine:
    return Engine(config, latency, steps=RecentSteps(STEPS_KEPT), reports_batches=_logs_iterations(options))


def _logs_iterations(options: ServeOptions) -> bool:
    logged = options.observability
    return logged.enable_logging_iteration_details and not logged.disable_log_stats


def _rank_drivers(
    options: ServeOptions,
    engines: Sequence[Engine],
    metrics: Sequence[EngineMetrics],
    steps: JointSteps | None,
    wire: WriteCoalescer,
) -> tuple[Sequence[EngineOutput], Sequence[RealtimeDriver | RankDriver]]:
    """Return the output and the driver of each rank. With joint steps, ranks step together."""
    if len(engines) == 1 and steps is None:
        driver = RealtimeDriver(engines[0], metrics[0], wire, options.speed)
        return [driver.output], [driver]
    outputs = {rank: EngineOutput(engine, metrics[rank]) for rank, engine in enumerate(engines)}
    group = IndependentRanks(engines) if steps is None else LockstepRanks(engines, steps)
    shared = RankGroupDriver(group, outputs, wire, options.speed)
    return list(outputs.values()), [RankDriver(shared, rank, engine) for rank, engine in enumerate(engines)]


def driver_of(ranks: Mapping[int, RankEngine]) -> RealtimeDriver:
    """Return the driver that accepts requests for all ranks."""
    first = ranks[0].driver
    assert not isinstance(first, InstanceDriver)
    return first.shared_driver if isinstance(first, RankDriver) else first


class LiveCluster:
    """The instances behind a router. The clock starts at construction, which raises OptionError if KV events cannot be
    published."""

    def __init__(
        self, options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, wire: WriteCoalescer
    ) -> None:
        # Admission, gateway, separate pools and autoscaling take 20 ms to load, which one instance does not need.
        from blis_sim.engine.cluster.assembly import build_cluster

        self.engines: dict[int, RankEngine] = {}
        """Engines of the present instances, by number; those of one instance follow each other."""
        self.instances: dict[int, Sequence[int]] = {}
        """Numbers of the engines of each present instance, by number of the instance."""
        self.num_created = 0
        """Number of the next instance."""
        self.num_engines_created = 0
        """Number of the next engine."""
        self.on_added: Callable[[int], None] = ignore
        """Called with the number of each instance that is added later."""
        self.on_removed: Callable[[int, Mapping[int, RankEngine], InstanceState], None] = ignore
        """Called with the number of each removed instance, its engines by number, and its final state."""
        self._options = options
        self._environment = environment
        self._outputs: dict[int, EngineOutput] = {}
        self._first_deployment: Deployment | None = None
        self._is_running = False
        described = replace(options.cluster, deployment=_simulated_options(options)[0])
        cluster = build_cluster(described, deployment, self._new_engine, keeps_history=False)
        self.driver = ClusterDriver(cluster, self._outputs, wire, options.speed)
        self.driver.on_removed = self._remove
        for number in self.instances:
            self._join(number)
        self._is_running = True

    def engines_of(self, number: int) -> Mapping[int, RankEngine]:
        """Return the engines of a present instance, by their numbers."""
        return {each: self.engines[each] for each in self.instances[number]}

    async def add(self, after_us: Micros) -> int:
        """Add an instance equal to the first one, which accepts requests `after_us` later. Returns its number.

        Raises OptionError if instances have different roles or are placed in node pools.
        """
        from blis_sim.engine.cluster.policies import policies_of

        if self.driver.cluster.hides_prefill_sub_requests:
            raise OptionError("instances cannot be added where some compute prompts and others answer")
        scaling = policies_of(self._options.cluster).scaling
        if scaling.node_pools or scaling.decides:
            raise OptionError("instances cannot be added by hand where they are placed on the machines of node_pools")
        assert self._first_deployment is not None
        number = self.num_created
        await self.driver.add(self._new_engine(self._first_deployment), after_us)
        return number

    def _new_engine(self, deployment: Deployment) -> Engine | RankGroup:
        """Create the engine of the next instance, or its ranks."""
        deployment = _with_rank(deployment)
        config, latency = engine_settings(self._options, deployment)
        engine: Engine | RankGroup
        if deployment.has_own_ranks:
            shares_experts = deployment.shares_experts and config.timing is None
            engine = new_ranks(config, latency, deployment.dp, self._slowed_engine, shares_experts)
        else:
            engine = self._slowed_engine(config, latency)
        self._first_deployment = self._first_deployment or deployment
        number, first = self.num_created, self.num_engines_created
        self.num_created += 1
        self.num_engines_created += len(engine.instances)
        self.instances[number] = range(first, self.num_engines_created)
        for place, each in zip(self.instances[number], engine.instances, strict=True):
            metrics = _new_metrics(self._options, deployment.config)
            self._outputs[place] = EngineOutput(each, metrics, on_batch=IterationLog(place, each).log)
        if self._is_running:
            self._join(number)
            self.on_added(number)
        return engine

    def _slowed_engine(self, config: EngineConfig, latency: LatencyModel) -> Engine:
        return _logged_engine(self._options, config, SlowedLatency(latency))

    def _join(self, number: int) -> None:
        for rank, place in enumerate(self.instances[number]):
            output = self._outputs[place]
            metrics, latency = output.recorder, output.engine.latency
            assert isinstance(metrics, EngineMetrics)
            assert isinstance(latency, SlowedLatency)
            publisher = open_publisher(self._options.kv_sharing, self._environment, output.engine.config, place)
            if publisher is not None:
                output.on_cache_changes = publisher.publish
            driver = InstanceDriver(self.driver, number, output.engine, rank)
            self.engines[place] = RankEngine(driver, metrics, latency, publisher, fails_alone=True)

    def _remove(self, number: int, state: InstanceState) -> None:
        engines = {place: self.engines.pop(place) for place in self.instances.pop(number)}
        for engine in engines.values():
            if engine.kv_events is not None:
                engine.kv_events.close()
        self.on_removed(number, engines, state)
        for engine in engines.values():
            engine.driver.engine.release()


@dataclass(frozen=True, slots=True)
class Backend:
    """The engines of a server with their driver and metrics."""

    wire: WriteCoalescer
    driver: Driver
    metrics_source: Metrics
    slow_readers: SlowReaders
    engines: Mapping[int, RankEngine] = field(default_factory=dict)
    """Engines of this process, by rank or by number of instance."""
    cluster: LiveCluster | None = None
    """The instances behind a router, if there is one."""
    request_numbers: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for request ids, unique among all processes of the server."""
    structured_outputs: StructuredOutputBackend | None = None
    """The structured-output backend that the server's processes share; None in a server of one process."""


def local_backend(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> Backend:
    """Build engines in this process and start their clocks."""
    wire = WriteCoalescer(Lateness(), is_timed=not math.isinf(options.speed))
    interval_s = environment.log_stats_interval_s
    slow_readers = SlowReaders(options.network.max_unsent_kib * 1024)
    if options.serves_cluster:
        cluster = LiveCluster(options, deployment, environment, wire)
        source = source_of(
            options, deployment, cluster.engines, wire.lateness, slow_readers, environment.log_stats_interval_s
        )
        return Backend(wire, cluster.driver, source, slow_readers, cluster.engines, cluster=cluster)
    engines = build_engines(options, deployment, environment, wire)
    source = source_of(options, deployment, engines, wire.lateness, slow_readers, interval_s)
    return Backend(wire, driver_of(engines), source, slow_readers, engines)


def source_of(
    options: ServeOptions,
    deployment: Deployment,
    engines: Mapping[int, RankEngine],
    lateness: Lateness,
    slow_readers: SlowReaders,
    log_interval_s: float = 0.0,
) -> MetricsSource:
    """Return the metrics source of `engines`."""
    return new_source(
        options.model_names[0],
        {number: MeasuredEngine(each.driver, each.metrics) for number, each in engines.items()},
        cache_config_labels(options, deployment),
        lateness,
        read_fake_metrics(options.process.fake_metrics),
        slow_readers,
        None if options.content.tools.tool_call_parser is None else ToolParsing(),
        shows_engines=not options.observability.disable_log_stats,
        log_interval_s=0.0 if options.observability.disable_log_stats else log_interval_s,
        is_multiprocess=options.has_multiprocess_metrics,
        metrics=custom_metrics(options.observability.metric),
    )
