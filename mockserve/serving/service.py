"""What all routes share: the served model, its limits, and the driver that answers."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from aiohttp import web

from blis_sim.engine.deployment import Deployment
from blis_sim.engine.request import ExternalPrompt
from mockserve.connections.headers import Network, StreamHeads, network_of
from mockserve.connections.slow_readers import SlowReaders
from mockserve.content.pooler import Pooler, new_pooler
from mockserve.content.tokens.tokenizer import BuiltinTokenizer, Tokenizer
from mockserve.content.vocabulary import new_composer, open_generation_defaults, open_vocabulary, parser_problem
from mockserve.engines.backend import Backend, RankEngine
from mockserve.engines.deployment import StructuredOutputBackend, transfer_of, with_features
from mockserve.faults.engine import EngineFaults
from mockserve.faults.shaping import FaultSource
from mockserve.kv_blocks.setup import KVTransfer, block_naming
from mockserve.metrics.page import Metrics
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.startup_checks import refuse_start
from mockserve.protocol.completions.requests import (
    ChatRequest,
    CompletionRequest,
    KnownBodies,
    known_chats,
    known_completions,
)
from mockserve.protocol.errors import engine_dead, unknown_model
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver
from mockserve.realtime.interface import Driver
from mockserve.realtime.wire import Wire
from mockserve.replies.frames import EventTemplates
from mockserve.replies.generation import Generations, random_ids
from mockserve.serving.adapters import Adapter, Adapters, with_modules
from mockserve.serving.admission import BodyRoom, OpenReplies, QueueLimits, too_busy
from mockserve.serving.aside import Aside
from mockserve.serving.gates import Gate, open_gates
from mockserve.serving.planner import Planner
from mockserve.serving.response_store import ResponseStore
from mockserve.serving.suspension import Suspension, SuspensionOfAll

if TYPE_CHECKING:
    from mockserve.serving.instances import InstanceControl

VLLM_VERSION = "0.33.0"


@dataclass(slots=True)
class Service:
    """One served model."""

    network: Network
    heads: StreamHeads
    environment: ServerEnvironment

    model_names: Sequence[str]
    root: str
    fingerprint: str
    api_keys: frozenset[str]
    planner: Planner
    wire: Wire
    driver: Driver
    engines: Mapping[int, RankEngine]
    """By rank or by number of instance."""
    metrics_source: Metrics
    queue_limits: QueueLimits
    options: ServeOptions
    faults: FaultSource
    engine_faults: EngineFaults
    deployment: Deployment
    gates: frozenset[Gate]
    """Which routes there are."""
    adapters: Adapters
    suspension: Suspension | SuspensionOfAll
    responses: ResponseStore
    slow_readers: SlowReaders
    pooler: Pooler | None
    """None for a model that generates only."""
    completions: KnownBodies[CompletionRequest] = field(default_factory=known_completions)
    chats: KnownBodies[ChatRequest] = field(default_factory=known_chats)
    """What reads the bodies of the two routes that most requests are to."""
    ids: Iterator[str] = field(default_factory=random_ids)
    """New ones for replies."""
    templates: EventTemplates = field(default_factory=EventTemplates)
    body_room: BodyRoom = field(default_factory=BodyRoom)
    """For the bodies of requests that are being answered."""
    weight_version: str = "default"
    has_reset_weights: bool = False
    """Whether POST /weight_checker has set all weights to zero since the last update."""
    transfer: KVTransfer | None = None
    tracks_load: bool = False
    is_stopping: bool = False
    """Whether the process has been told to end: open replies may finish, new requests are refused."""
    answering: OpenReplies = field(default_factory=OpenReplies)
    """Those to requests to the model routes."""
    death_told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a client has been told, by the status of a reply, that the engine has died."""
    cluster: "InstanceControl | None" = None
    """The instances behind the router, if there is one."""

    @property
    def aside(self) -> Aside:
        """Where work is done that would hold up the event loop."""
        return self.planner.aside

    @property
    def num_answering(self) -> int:
        """Requests to the model routes that are being answered."""
        return self.answering.number

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        driver = self.driver
        is_closed = isinstance(driver, ClusterDriver | InstanceDriver) and not driver.takes_requests
        return not self.is_stopping and driver.failure is None and not is_closed

    @property
    def num_engines(self) -> int:
        """Data-parallel ranks, or all instances there have been."""
        return max(self.options.deployment.dp, len(self.engines)) if self.cluster is None else self.cluster.num_made

    def external_prompt(self, params: Mapping[str, Any] | None, prompt_tokens: int) -> ExternalPrompt | None:
        """What another instance has computed of a prompt, according to a request."""
        return None if self.transfer is None else self.transfer.incoming(params, prompt_tokens)

    def handover(self, params: Mapping[str, Any] | None, generations: Generations) -> dict[str, Any] | None:
        """What a later instance must be told, if a request wants that."""
        if self.transfer is None:
            return None
        first = generations[0]
        num_tokens = first.request.input_tokens + first.answer.num_tokens - 1
        return self.transfer.outgoing(params, num_tokens, first.request.id)

    def check_queue(self, num_new: int) -> None:
        """Raise ApiError when `num_new` more requests are too many, or one is: for a dead engine."""
        if self.driver.failure is not None:
            raise engine_dead()
        limits = self.queue_limits
        if limits.limits_anything:
            limit = limits.exceeded(self.driver.num_flights, num_new, self.driver.num_waiting_tokens)
            if limit is not None:
                if limit in self.metrics_source.rejections:
                    self.metrics_source.rejections[limit] += 1
                raise too_busy(limit)

    def close(self) -> None:
        """Let go of the clock and of the sockets beside those of HTTP."""
        self.aside.close()
        self.engine_faults.close()
        if self.cluster is not None:
            self.cluster.close()
        self.driver.close()
        for engine in self.engines.values():
            if engine.kv_events is not None:
                engine.kv_events.close()

    def check_model(self, name: str) -> Adapter | None:
        """The adapter that `name` is, if it is one. Raises ApiError unless it is served; empty means the first name."""
        adapter = self.adapters.get(name)
        if name and adapter is None and name not in self.model_names:
            raise unknown_model(name, self.model_names)
        return adapter

    def reply_name(self, adapter: Adapter | None) -> str:
        """What a reply calls the model, whichever of its names was asked for."""
        return self.model_names[0] if adapter is None else adapter.name


SERVICE = web.AppKey("service", Service)
"""Where an application keeps it."""


def build_service(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, backend: Backend
) -> Service:
    """Everything but the HTTP server."""
    config, _ = with_features(options, deployment)
    driver, engines = backend.driver, backend.engines
    tokenizer, conversations = open_vocabulary(options.content, options.deployment.model, deployment.model.vocab_size)
    check_parsers(options, tokenizer)
    names = options.model_names
    faults = FaultSource(options.faults.settings, options.faults.fault_seed)
    engine_faults = EngineFaults(engines, faults)
    engine_faults.plan(options.faults.timed)
    network = network_of(options)
    answering = OpenReplies()
    aside = Aside(answering)
    return Service(
        network=network,
        heads=StreamHeads(network),
        environment=environment,
        model_names=names,
        root=options.deployment.model,
        fingerprint=_fingerprint(deployment),
        api_keys=frozenset(key for key in options.network.api_key or (environment.api_key,) if key),
        planner=Planner(
            tokenizer,
            deployment.config.limit_tokens,
            block_naming(options.kv_sharing, environment, config),
            options.content.seed,
            new_composer(options.content, tokenizer),
            replace(conversations, run_job=aside.done_from_thread),
            backend.request_numbers,
            aside,
            backend.structured_outputs
            or StructuredOutputBackend(options.content.structured_outputs.lenient_structured_outputs),
            open_generation_defaults(options.content, options.deployment.model),
            deployment.model.vocab_size,
        ),
        answering=answering,
        wire=backend.wire,
        driver=driver,
        engines=engines,
        metrics_source=backend.metrics_source,
        queue_limits=queue_limits(options, config.max_num_seqs, options.cluster.num_instances),
        faults=faults,
        engine_faults=engine_faults,
        options=options,
        deployment=deployment,
        gates=open_gates(options, environment),
        responses=ResponseStore(environment.stores_responses),
        adapters=with_modules(Adapters(names, options.lora.enable_lora), options.routes.lora_modules),
        suspension=Suspension(driver, lambda state: _tell_sleep(engines, state)),
        slow_readers=backend.slow_readers,
        pooler=new_pooler(options.routes, deployment.model, options.deployment.model, options.content.seed),
        transfer=transfer_of(options, deployment, environment),
        tracks_load=options.enable_server_load_tracking,
    )


def check_parsers(options: ServeOptions, tokenizer: Tokenizer) -> None:
    """Refuse, as vLLM does, parsers whose tokens a tokenizer lacks; the built-in one stands for any tokenizer."""
    if isinstance(tokenizer, BuiltinTokenizer):
        return
    tools, reasoning = options.content.tools, options.content.reasoning
    tool_parser = tools.tool_call_parser if tools.calls_tools else None
    problem = parser_problem(tool_parser, reasoning.reasoning_parser, tokenizer, options.deployment.model)
    if problem is not None:
        refuse_start(options, problem)


def _tell_sleep(engines: Mapping[int, RankEngine], state: str) -> None:
    for engine in engines.values():
        engine.metrics.sleep_state = state


def queue_limits(options: ServeOptions, max_num_seqs: int, num_instances: int) -> QueueLimits:
    """The limits of a server with so many instances at its start."""
    waiting = options.process.max_waiting_requests
    unfinished = None if waiting is None else num_instances * max_num_seqs + waiting
    return QueueLimits(options.queue.max_num_queued_reqs, options.queue.max_num_queued_tokens, unfinished)


def _fingerprint(deployment: Deployment) -> str:
    """Version, parallelism and a hash of the configuration."""
    digest = blake2b(repr(deployment.config).encode() + deployment.model.name.encode(), digest_size=4).hexdigest()
    tp = f"-tp{deployment.tp}" if deployment.tp > 1 else ""
    dp = f"-dp{deployment.dp}" if deployment.dp > 1 else ""
    return f"vllm-{VLLM_VERSION}{tp}{dp}-{digest}"
