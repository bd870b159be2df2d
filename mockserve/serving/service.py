"""The state shared by all routes of a server: model, delivery of replies, lifecycle and engines."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Protocol

from aiohttp import web

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment
from mockserve.engines import Backend, RankEngine, StructuredOutputBackend, engine_settings, transfer_of
from mockserve.executor.executor import OffloadExecutor
from mockserve.executor.memory import BodyMemory
from mockserve.faults import EngineFaults, FaultControl, FaultSource
from mockserve.generation.composer import new_composer, open_generation_defaults, open_vocabulary, parser_problem
from mockserve.generation.tokenizer import BuiltinTokenizer, Tokenizer
from mockserve.generation.writing import answer_settings
from mockserve.http.headers import Network, StreamHeads, network_of
from mockserve.kv_events.setup import block_naming
from mockserve.metrics.counters import WebSocketMetrics
from mockserve.metrics.page import Metrics
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import POOLING_FAMILY, ROUTE_FAMILIES, pooling_task_of
from mockserve.options.startup_checks import refuse_start
from mockserve.protocol.completions import (
    ChatRequest,
    ParsedBodyCache,
    TextRequest,
    chat_body_cache,
    completion_body_cache,
)
from mockserve.realtime.in_flight import random_ids
from mockserve.realtime.suspension import Suspension
from mockserve.reply.call_style import reasoning_style
from mockserve.reply.observers import open_observers
from mockserve.reply.pictures import Pictures
from mockserve.reply.reply import ReplyDelivery
from mockserve.serving.background import BackgroundLoad
from mockserve.serving.chat import refuse_early
from mockserve.serving.lifecycle import Lifecycle, QueueLimits, RequestQueue
from mockserve.serving.model import (
    PLAYBACK_FAMILY,
    Adapters,
    RouteCondition,
    ServedModel,
    open_conditions,
    with_modules,
)
from mockserve.serving.planner import Planner
from mockserve.serving.response_store import ResponseStore

VLLM_VERSION = "0.33.0"


class Instances(Protocol):
    """The instances behind the router of a server."""

    @property
    def num_engines_created(self) -> int:
        """Number of engines created so far, those of removed instances included."""
        ...

    @property
    def ports(self) -> Mapping[int, int]:
        """Ports of single instances, by number."""
        ...

    def service(self, number: int) -> "Service":
        """Return the service of one instance. Raises ApiError for an unknown number, or if the instance was removed."""
        ...

    async def close_ports(self, at_once: asyncio.Event) -> None:
        """Close the ports of all instances, without waiting for replies after `at_once`."""
        ...

    def close(self) -> None:
        """Close the instances."""
        ...


@dataclass(slots=True)
class Service:
    """One server: the model that it serves, the delivery of replies, its life, and state of single routes."""

    model: ServedModel
    delivery: ReplyDelivery
    lifecycle: Lifecycle
    options: ServeOptions
    environment: ServerEnvironment
    network: Network
    api_keys: frozenset[str]
    conditions: frozenset[RouteCondition]
    """The conditions of routes that hold."""
    engines: Mapping[int, RankEngine]
    """Engines by rank or by number of instance."""
    metrics_source: Metrics
    faults: FaultSource
    engine_faults: FaultControl
    pictures: Pictures
    responses: ResponseStore
    chats: ParsedBodyCache[ChatRequest]
    completions: ParsedBodyCache[TextRequest] = field(default_factory=completion_body_cache)
    """Parsers of chat and completion bodies, the two most frequent kinds."""
    ids: Iterator[str] = field(default_factory=random_ids)
    """New ids of replies."""
    body_memory: BodyMemory = field(default_factory=BodyMemory)
    """Memory for the bodies of open requests."""
    background: BackgroundLoad | None = None
    """Synthetic load, where it can be set."""
    playback: object | None = None
    """Recorded replies, where there may be some: the state of the routes of `PLAYBACK_FAMILY`."""
    cluster: "Instances | None" = None
    """The instances behind the router, if there is one."""

    @property
    def num_engines(self) -> int:
        """Data-parallel ranks, or engines of all instances ever made."""
        if self.cluster is not None:
            return self.cluster.num_engines_created
        return max(self.options.deployment.dp, len(self.engines))

    def close(self) -> None:
        """Stop the clock, and close all sockets except HTTP's."""
        self.delivery.executor.close()
        self.engine_faults.close()
        if self.cluster is not None:
            self.cluster.close()
        self.delivery.driver.close()
        for engine in self.engines.values():
            if engine.kv_events is not None:
                engine.kv_events.close()


SERVICE = web.AppKey("service", Service)
"""The key of an application's service."""


def build_service(
    options: ServeOptions,
    deployment: Deployment,
    environment: ServerEnvironment,
    backend: Backend,
    vocabulary_source: Service | None = None,
    fault_control: FaultControl | None = None,
) -> Service:
    """Return the service: a server without its HTTP part. It shares the vocabulary of the service `vocabulary_source`.

    `fault_control` is given if the engines run in another process.
    """
    network, playing_back = network_of(options), options.playing_back
    lifecycle = Lifecycle(backend.driver, options.network.shutdown_timeout)
    adapters = with_modules(Adapters(options.model_names, options.lora.enable_lora), options.routes.lora_modules)
    delivery = ReplyDelivery(
        driver=backend.driver,
        suspension=Suspension(
            backend.driver,
            lambda state: report_sleep(backend.engines, state),
            lambda engine: report_reset(backend.engines, engine),
        ),
        open_replies=lifecycle.open_replies,
        executor=OffloadExecutor(lifecycle.open_replies),
        wire=backend.wire,
        heads=StreamHeads(network),
        slow_readers=backend.slow_readers,
        keep_alive_s=options.replies.sse_keep_alive_interval,
        cache_hit_threshold=options.replies.global_cache_hit_threshold,
        observers=open_observers(options.observability, environment.logs_prompts, adapters.get),
    )
    model = _served_model(options, deployment, environment, backend, delivery.executor, adapters, vocabulary_source)
    faults = FaultSource(options.faults.settings, options.faults.fault_seed)
    engine_faults = fault_control or EngineFaults(backend.engines, faults)
    engine_faults.plan(options.faults.timed)
    conditions = open_conditions(options, environment)
    if RouteCondition.REALTIME in conditions:
        backend.metrics_source.http.websockets = WebSocketMetrics()
    return Service(
        model=model,
        delivery=delivery,
        lifecycle=lifecycle,
        options=options,
        environment=environment,
        network=network,
        api_keys=frozenset(key for key in options.network.api_key or (environment.api_key,) if key),
        conditions=conditions,
        engines=backend.engines,
        metrics_source=backend.metrics_source,
        faults=faults,
        engine_faults=engine_faults,
        pictures=Pictures(options.pictures, options.content.seed),
        responses=ResponseStore(environment.stores_responses),
        chats=chat_body_cache(partial(refuse_early, model)),
        background=BackgroundLoad(backend.driver, backend.engines) if options.routes.enable_state_control else None,
        playback=ROUTE_FAMILIES[PLAYBACK_FAMILY].new_state(playing_back) if playing_back.is_on else None,
    )


def _served_model(
    options: ServeOptions,
    deployment: Deployment,
    environment: ServerEnvironment,
    backend: Backend,
    executor: OffloadExecutor,
    adapters: Adapters,
    vocabulary_source: Service | None,
) -> ServedModel:
    config, _ = engine_settings(options, deployment)
    root = options.deployment.model
    if vocabulary_source is None:
        tokenizer, conversations = open_vocabulary(options.content, root, deployment.model.vocab_size)
        check_parsers(options, tokenizer)
        composer = new_composer(options.content, tokenizer)
    else:
        planner = vocabulary_source.model.planner
        tokenizer, conversations, composer = planner.tokenizer, planner.conversations, planner.composer
    num_engines = 1 if backend.cluster is None else len(backend.engines)
    limits = queue_limits(options, config, num_engines)
    planner = Planner(
        tokenizer,
        deployment.config.limit_tokens,
        block_naming(options.kv_sharing, environment, config),
        options.content.seed,
        composer,
        replace(conversations, run_job=executor.run_from_thread),
        backend.request_numbers,
        executor,
        backend.structured_outputs
        or StructuredOutputBackend(options.content.structured_outputs.lenient_structured_outputs),
        open_generation_defaults(options.content, root),
        deployment.model.vocab_size,
    )
    return ServedModel(
        names=options.model_names,
        root=root,
        fingerprint=_system_fingerprint(deployment),
        options=options,
        deployment=deployment,
        block_size_tokens=config.block_size_tokens,
        planner=planner,
        answers=answer_settings(options.content),
        reasoning_style=reasoning_style(options.content.reasoning.reasoning_parser),
        queue=RequestQueue(backend.driver, limits, backend.metrics_source.rejections),
        adapters=adapters,
        pooler=None
        if pooling_task_of(options.routes) is None
        else ROUTE_FAMILIES[POOLING_FAMILY].new_state(options.routes, deployment.model, root, options.content.seed),
        tool_parsing=backend.metrics_source.tool_parsing,
        transfer=transfer_of(options, deployment, environment),
    )


def check_parsers(options: ServeOptions, tokenizer: Tokenizer) -> None:
    """Refuse, as vLLM does, parsers whose special tokens the tokenizer lacks; the built-in tokenizer is not checked."""
    if isinstance(tokenizer, BuiltinTokenizer):
        return
    tools, reasoning = options.content.tools, options.content.reasoning
    tool_parser = tools.tool_call_parser if tools.calls_tools else None
    problem = parser_problem(tool_parser, reasoning.reasoning_parser, tokenizer, options.deployment.model)
    if problem is not None:
        refuse_start(options, problem)


def report_sleep(engines: Mapping[int, RankEngine], state: str) -> None:
    """Show a new state of sleep of engines on the metrics page."""
    for engine in engines.values():
        engine.metrics.sleep_state = state


def report_reset(engines: Mapping[int, RankEngine], engine: Engine) -> None:
    """Count the cleared prefix cache of one of the engines on the metrics page."""
    for each in engines.values():
        if each.driver.engine is engine:
            each.metrics.prefix_cache_was_reset()


def queue_limits(options: ServeOptions, config: EngineConfig, num_engines: int) -> QueueLimits:
    """Return the queue limits of a server that starts with `num_engines`."""
    waiting = options.process.max_waiting_requests
    unfinished = None if waiting is None else num_engines * config.max_num_seqs + waiting
    return QueueLimits(options.queue.max_num_queued_reqs, options.queue.max_num_queued_tokens, unfinished)


def _system_fingerprint(deployment: Deployment) -> str:
    """Version, parallelism and a hash of the configuration."""
    digest = blake2b(repr(deployment.config).encode() + deployment.model.name.encode(), digest_size=4).hexdigest()
    tp = f"-tp{deployment.tp}" if deployment.tp > 1 else ""
    dp = f"-dp{deployment.dp}" if deployment.dp > 1 else ""
    return f"vllm-{VLLM_VERSION}{tp}{dp}-{digest}"
