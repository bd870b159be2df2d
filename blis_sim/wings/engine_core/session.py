"""The engine's life: one frontend after another, until a signal or the engine's death."""

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine
from dataclasses import asdict
from functools import partial
from math import isinf
from typing import Any
from uuid import uuid4

import zmq.asyncio

from blis_sim.engine.deployment import Deployment
from blis_sim.options import StartError
from blis_sim.wings.engine_core import messages
from blis_sim.wings.engine_core.calls import CallError, Calls
from blis_sim.wings.engine_core.core import RankCore, printable
from blis_sim.wings.engine_core.link import Link, LinkError, cancelled
from blis_sim.wings.engine_core.messages import EngineOutputs, MessageError, ReadyResponse, UtilityOutput
from blis_sim.wings.engine_core.options import EngineCoreOptions
from blis_sim.wings.engine_core.parallel_hash import parallel_config_hash
from blis_sim.wings.engine_core.waves import Waves
from mockserve.engines import driver_of, local_backend
from mockserve.executor.executor import MANY_OBJECTS
from mockserve.options.environment import ServerEnvironment
from mockserve.serving.service import Service, build_service

_logger = logging.getLogger(__name__)

LOAD_REPORT_S = 0.02
"""Interval at which the load of ranks is compared with what the coordinator knows."""
MOST_REQUEST_BYTES, BYTES_OF_TOKEN, MOST_OTHER_BYTES = 1 << 22, 8, 1 << 19
"""A request beside the ids of its prompt (a bias for each token of a vocabulary takes half of it); other messages."""
MOST_CONTAINERS = 100_000
_CONTAINERS = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
"""First bytes of an array or a map. Bytes of numbers and texts may look alike: the bound allows for them."""
MOST_LOGGED_PER_S = 10
"""Lines about unreadable messages within a second."""


def _check_size(content: bytes, most_tokens: int) -> None:
    """Raise MessageError for a message that would take long to read; a request has a prompt of `most_tokens`."""
    most_bytes = MOST_REQUEST_BYTES + BYTES_OF_TOKEN * most_tokens if most_tokens else MOST_OTHER_BYTES
    if len(content) > most_bytes:
        raise MessageError(f"a message has {len(content)} bytes beside its arrays, more than {most_bytes}")
    if len(content) > MOST_CONTAINERS:
        num_containers = len(content) - len(content.translate(None, _CONTAINERS))
        if num_containers > MOST_CONTAINERS + 2 * most_tokens:
            raise MessageError(f"a message has some {num_containers} arrays and maps")


class Session:
    """One frontend, with a link to each rank of this process."""

    def __init__(
        self, service: Service, options: EngineCoreOptions, deployment: Deployment, context: zmq.asyncio.Context
    ) -> None:
        self._service, self._options, self._deployment = service, options, deployment
        most_bytes = options.process.max_body_mb * 2**20
        ranks = range(options.first_rank, options.first_rank + options.num_local_ranks)
        self.links = [Link(context, rank, most_bytes) for rank in ranks]
        shows_batches = options.observability.enable_logging_iteration_details
        self.cores = [
            RankCore(service, number, rank, link.send, shows_batches)
            for number, (rank, link) in enumerate(zip(ranks, self.links, strict=True))
        ]
        self._calls = [Calls(core) for core in self.cores]
        self._waves: Waves | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread_until_s = 0.0
        self._num_unread = 0

    async def open(self) -> None:
        """Meet the frontend. Raises LinkError."""
        address = self._options.handshake_address
        await asyncio.gather(*(link.greet(address) for link in self.links))
        size = self._options.deployment.dp
        welcome = self.links[0].welcome
        assert welcome is not None
        named = welcome.parallel_config.get("data_parallel_size", size)
        if named != size:
            raise LinkError(f"the frontend has --data-parallel-size {named}, but the engine {size}")
        config_hash = None
        if size > 1:
            config_hash = self._options.parallel_config_hash or parallel_config_hash(self._options, self._deployment)
        await asyncio.gather(*(link.open(self._ready(link), config_hash) for link in self.links))
        if self.links[0].has_coordinator:
            if self._deployment.model.num_experts > 1:
                self._waves = Waves(self.cores, [link.send for link in self.links])
            for core in self.cores:
                core.outputs.names_finished = True
            self._start(self._report_loads())
        for index, link in enumerate(self.links):
            link.listen(partial(self._received, index))

    def _ready(self, link: Link) -> ReadyResponse:
        options, config, deployment = self._options, self._deployment.config, self._deployment
        addresses = link.welcome.addresses if link.welcome is not None else None
        blocks, size = config.total_kv_blocks, config.block_size_tokens
        tokens = blocks * size
        lora, events = options.lora.settings, options.kv_sharing.events
        return ReadyResponse(
            max_model_len=config.limit_tokens,
            num_gpu_blocks=blocks,
            block_size=size,
            dp_stats_address=None if addresses is None else addresses.frontend_stats_publish_address,
            dtype="bfloat16",
            vllm_version=messages.VLLM_VERSION,
            world_size=deployment.tp * deployment.pp,
            # Ranks without experts are engines of their own, each with one rank.
            data_parallel_size=options.deployment.dp if deployment.model.num_experts > 1 else 1,
            tensor_parallel_size=deployment.tp,
            pipeline_parallel_size=deployment.pp,
            decode_context_parallel_size=1,
            data_parallel_rank=link.rank,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            instance_id=uuid4().hex[:5],
            supports_lora=lora is not None,
            max_loras=0 if lora is None else options.lora.max_loras,
            kv_cache_size_tokens=tokens,
            kv_cache_max_concurrency=tokens / config.limit_tokens,
            kv_events_config=asdict(events.of_rank(link.rank)) if events.publishes else None,
            enable_sleep_mode=True,
            effective_attention_block_size=size,
            coordinator_input_address=None if addresses is None else addresses.coordinator_input,
            coordinator_output_address=None if addresses is None else addresses.coordinator_output,
        )

    async def until_lost(self) -> None:
        """Return when the frontend has gone."""
        waits = [asyncio.ensure_future(link.lost.wait()) for link in self.links]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(*waits)

    def end(self, is_dead: bool) -> None:
        """Tell the frontend that the engine is dead, or end all requests with outputs, as vLLM's does on a signal."""
        if is_dead:
            _logger.error("the engine has failed: its frontend is told")
            for link in self.links:
                link.send_death()
            return
        _logger.info("stopping: requests ended: %d", sum(core.num_open for core in self.cores))
        self._service.delivery.driver.end_early()
        for core in self.cores:
            core.outputs.leave()

    async def close(self) -> None:
        """Forget all requests and adapters, and close the links."""
        for task in self._tasks:
            task.cancel()
        for core in self.cores:
            core.abort_all()
        await asyncio.sleep(0)
        await asyncio.gather(*(link.close() for link in self.links))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _received(self, index: int, frames: list[bytes]) -> None:
        """Take a message of the frontend, or log one line about bytes that are none."""
        self._service.delivery.wire.num_received += 1
        is_collecting = gc.isenabled()
        gc.disable()  # a message may make many objects at once
        try:
            self._take(index, frames)
        except MessageError as error:
            self._log_unreadable(str(error))
        finally:
            if gc.get_count()[0] > MANY_OBJECTS:
                gc.freeze()
            if is_collecting:
                gc.enable()

    def _take(self, index: int, frames: list[bytes]) -> None:
        core, kind = self.cores[index], frames[0]
        if kind == b"READY":
            return
        if len(frames) < 2:
            raise MessageError(f"a message of kind {kind[:8].hex()} has no content")
        content = frames[1]
        _check_size(content, self._deployment.config.limit_tokens if kind == messages.ADD else 0)
        if kind == messages.ADD:
            request = messages.read_request(content)
            if self._waves is not None:
                self._waves.request_came(index, request.current_wave)
            core.add(request)
        elif kind == messages.ABORT:
            core.abort(messages.read_aborted(content))
        elif kind == messages.UTILITY:
            client, number, method, arguments = messages.read_call(content)
            self._start(self._answer_call(index, client, number, method, arguments))
        elif kind == messages.START_WAVE:
            if self._waves is not None:
                self._waves.start(*messages.read_wave(content))
        else:
            raise MessageError(f"a message has the unknown kind {kind[:8].hex()}")

    async def _answer_call(self, index: int, client: int, number: int, method: str, arguments: list[object]) -> None:
        output = UtilityOutput(number)
        try:
            output.result = (None, await self._calls[index].result(method, arguments))
        except CallError as error:
            output.failure_message = str(error)
            _logger.info("%s", printable(str(error)))
        except Exception as error:
            _logger.exception("the call of %s failed", printable(method))
            output.failure_message = f"Call to {method} method failed: {error}"
        rank = self.cores[index].rank
        self.links[index].send(client, [messages.encode(EngineOutputs(rank, utility_output=output))])

    async def _report_loads(self) -> None:
        """Keep the coordinator informed of loads and of the end of waves."""
        while True:
            for core, link in zip(self.cores, self.links, strict=True):
                load = core.statistics.changed_load(0 if self._waves is None else self._waves.number)
                if load is not None:
                    link.send(messages.COORDINATOR, [messages.encode(EngineOutputs(core.rank, scheduler_stats=load))])
            if self._waves is not None:
                self._waves.end_if_idle()
            await asyncio.sleep(LOAD_REPORT_S)

    def _log_unreadable(self, problem: str) -> None:
        """Log one line for each bad message, but only so many within a second."""
        now_s = asyncio.get_running_loop().time()
        if now_s > self._unread_until_s:
            if self._num_unread > MOST_LOGGED_PER_S:
                _logger.warning("%d more messages could not be read", self._num_unread - MOST_LOGGED_PER_S)
            self._unread_until_s, self._num_unread = now_s + 1, 0
        self._num_unread += 1
        if self._num_unread <= MOST_LOGGED_PER_S:
            _logger.warning("a message was ignored: %s", printable(problem))


async def serve_frontends(options: EngineCoreOptions, deployment: Deployment, environment: ServerEnvironment) -> int:
    """Be the engine of one frontend after another until a signal. Returns the exit code: 1 for a dead engine.

    Raises StartError if the first frontend does not answer, or is of another release.
    """
    ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(code: int) -> None:
        if not ending.done():
            ending.set_result(code)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, 0)
    local = options.of_local_ranks
    service = build_service(local, deployment, environment, local_backend(local, deployment, environment))
    service.metrics_source.record_history(is_recording=False)
    driver_of(service.engines).on_failure = lambda _error: end(1)
    context = zmq.asyncio.Context()
    serving = asyncio.ensure_future(_frontends(service, options, deployment, context, ending))
    try:
        await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            serving.result()
        return ending.result() if ending.done() else 0
    finally:
        await cancelled(serving)
        service.close()
        context.destroy(linger=0)


async def _frontends(
    service: Service,
    options: EngineCoreOptions,
    deployment: Deployment,
    context: zmq.asyncio.Context,
    ending: "asyncio.Future[int]",
) -> None:
    """Serve until cancelled. Only the first frontend has to come within a time."""
    timeout_s = None if isinf(options.handshake_timeout_s) else options.handshake_timeout_s
    while True:
        session = Session(service, options, deployment, context)
        _logger.info("waiting for a frontend at %s", options.handshake_address)
        is_ready = False
        try:
            async with asyncio.timeout(timeout_s):
                await session.open()
            is_ready, timeout_s = True, None
            _logger.info("ready: rank %s", ", ".join(str(core.rank) for core in session.cores))
            await session.until_lost()
            _logger.warning("the frontend has gone: open requests ended: %d", sum(c.num_open for c in session.cores))
            if options.once:
                return
        except TimeoutError:
            raise StartError(
                f"no frontend answered at {options.handshake_address} within {options.handshake_timeout_s:g} s: start "
                "it with --data-parallel-size-local 0 and this --data-parallel-address and --data-parallel-rpc-port"
            ) from None
        except LinkError as error:
            raise StartError(str(error)) from None
        except asyncio.CancelledError:
            if is_ready and ending.done():
                session.end(is_dead=bool(ending.result()))
            raise
        finally:
            await session.close()
        # The next frontend meets an engine that has just started: vLLM's ends with its frontend.
        service.delivery.suspension.wake_up(None)
        service.delivery.suspension.reset_prefix_cache(preempts_running=True)
