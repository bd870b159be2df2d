"""An API server process: it reads requests and writes replies; tokens come from the engine process."""

import asyncio
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NoReturn, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from blis_sim.options import BlisError
from mockserve.api_servers.channel import REQUEST_STATS, Channel, EngineCalls, State, open_channel
from mockserve.engines import Backend, StructuredOutputBackend, deployment_of, engine_settings
from mockserve.executor.memory import return_large_blocks
from mockserve.faults import Changes, FaultSource
from mockserve.http.connection import SlowReaders
from mockserve.http.sockets import raise_file_limit
from mockserve.listening import RunningServer, fastest_loop, keep_what_exists, listen
from mockserve.metrics.counters import HttpMetrics, Lateness, Operations, ToolParsing
from mockserve.metrics.page import REJECTION_REASONS, InThread, ProcessCounts
from mockserve.options.environment import ServerEnvironment
from mockserve.options.faults import FaultSettings, TimedFault
from mockserve.options.serve import ServeOptions
from mockserve.options.server import set_up_logging
from mockserve.protocol.errors import ApiError
from mockserve.realtime.driver import EngineFailedError, WriteCoalescer
from mockserve.realtime.in_flight import InFlightRequest, ParentRequest
from mockserve.serving.service import build_service

T = TypeVar("T")


@dataclass(slots=True)
class RemoteEngineInfo:
    """An engine in another process: its configuration, and its latest reported stats."""

    config: EngineConfig
    stats: EngineStats


@dataclass(slots=True)
class RemoteMetrics:
    """The counts of an API server process; the metrics page comes from the engine process."""

    lateness: Lateness
    slow_readers: SlowReaders
    channel: Channel
    http: HttpMetrics = field(default_factory=HttpMetrics)
    tool_parsing: ToolParsing = field(default_factory=ToolParsing)
    rejections: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REJECTION_REASONS, 0))
    operations: Operations = field(default_factory=Operations)
    """Never on the page: operations are timed in development mode only, which requires a single process."""

    async def page(self, names: Collection[str] = (), accept: str = "", in_thread: InThread | None = None) -> bytes:
        """Return the metrics page of all processes, or only the named samples, in the format selected by `accept`.

        The process with the engines writes the page.
        """
        return await self.channel.ask(EngineCalls.metrics_page, tuple(names), accept, False)

    async def history_json(self) -> bytes:
        """Return the metrics of all processes over time as JSON."""
        return await self.channel.ask(EngineCalls.metrics_page, (), "", True)

    def record_history(self, is_recording: bool) -> None:
        """Do nothing: the engine process records the metrics."""


class RemoteEngines:
    """The engines in another process: their driver, and the control of their faults. Use it from one event loop only.

    `origin_s` is the reading of the monotonic clock at the simulated instant 0. The engine process calls the methods
    at the end.
    """

    def __init__(
        self,
        config: EngineConfig,
        speed: float,
        origin_s: float,
        metrics: RemoteMetrics,
        wire: WriteCoalescer,
        takes_any_backend: bool = False,
    ) -> None:
        """With `takes_any_backend` every request may use its own structured-output backend."""
        self.engine = RemoteEngineInfo(config, EngineStats(0, 0, config.total_kv_blocks, 0, 0, 0))
        self.failure: BaseException | None = None
        """The error that broke the engines; from then on every request fails."""
        self.faults: FaultSource | None = None
        """The faults of replies in this process."""
        self.stops: asyncio.Queue[bool] = asyncio.Queue()
        """Whether to stop at once, for each call of `stop`."""
        # Requests may be planned on a thread, but the channel must be used from the event loop.
        call_soon, channel = asyncio.get_running_loop().call_soon_threadsafe, metrics.channel
        self.structured_outputs = StructuredOutputBackend(
            takes_any_backend, lambda name: call_soon(channel.call, EngineCalls.use_backend, name)
        )
        self._us_per_s = speed * 1e6
        self._origin_s = origin_s
        self._wire = wire
        self._metrics = metrics
        self._channel = channel
        self._flights: dict[int, InFlightRequest] = {}
        self._number_of: dict[str, int] = {}
        self._numbers = itertools.count()
        self._prompt_numbers = itertools.count()
        self._prompt: tuple[ParentRequest | None, int] = (None, 0)
        """The latest submitted choices, and the number of their prompt."""
        self._engine_state = State(self.engine.stats, 0, 0)

    # --- the control of their faults ---

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force, as of the latest report."""
        return list(self._engine_state.engine_faults)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Do nothing: the engine process plans the faults of the command line."""

    async def change(self, settings: FaultSettings, changes: Changes) -> None:
        """Change fault settings of all processes, and start and end engine faults. Raises OptionError without any
        change."""
        await self._channel.ask(EngineCalls.change_faults, settings, changes)

    # --- their driver ---

    @property
    def num_unfinished_requests(self) -> int:
        """Unfinished requests of all processes, as of the latest report."""
        return max(len(self._flights), self._engine_state.num_unfinished_requests)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of requests without a first token in all processes, as of the latest report."""
        return self._engine_state.num_waiting_tokens

    @property
    def request_ids(self) -> Collection[str]:
        """Ids of the requests of this process."""
        return self._number_of.keys()

    def clock(self) -> Micros:
        return self.instant_at(time.monotonic())

    def instant_at(self, reading_s: float) -> Micros:
        return int((reading_s - self._origin_s) * self._us_per_s)

    def pending_arrival(self, at: Micros) -> AbstractContextManager[None]:
        """Do nothing: the engines do not wait for requests that another process prepares."""
        return nullcontext()

    def submit(self, flight: InFlightRequest, arrived_at: Micros | None = None, rank: int | None = None) -> None:
        if self.failure is not None:
            raise EngineFailedError("the engine has failed") from self.failure
        request, parent = flight.request, flight.parent
        at = flight.arrived_at = flight.queued_at = self.clock() if arrived_at is None else arrived_at
        if parent is None or parent is not self._prompt[0]:
            self._prompt = (parent, next(self._prompt_numbers))
        number = next(self._numbers)
        self._flights[number] = flight
        self._number_of[request.id] = number
        num_choices = 1 if parent is None else parent.number
        call, prompt_number = self._channel.call, self._prompt[1]
        call(EngineCalls.submit, number, request, at, flight.finish_reason, prompt_number, num_choices, rank)

    def abort(self, request_id: str) -> None:
        number = self._number_of.pop(request_id, None)
        if number is not None:
            del self._flights[number]
            self._channel.call(EngineCalls.abort, number)

    async def until_routed(self, request_ids: Collection[str]) -> None:
        """Return at once: the engine process has no router."""

    def call_engine(self, function: Callable[[Engine, Micros], T]) -> T:
        """Raise ApiError: engines in another process cannot be called."""
        _refuse_here()

    def end_early(self, request_ids: Collection[str] | None = None) -> int:
        """Raise ApiError: engines in another process cannot be awaited."""
        _refuse_here()

    async def until(self, condition: Callable[[Engine], bool]) -> None:
        """Raise ApiError: engines in another process cannot be awaited."""
        _refuse_here()

    def close(self) -> None:
        """Stop: open replies get no more calls."""
        self._flights.clear()
        self._number_of.clear()

    # --- calls of the engine process ---

    def tokens(self, due_s: float, numbers: list[int], counts: list[int]) -> None:
        """New token counts of several requests, all due at one instant; tokens of aborted requests are dropped."""
        flights, wire = self._flights, self._wire
        wire.due_s = due_s
        wire.is_held = True
        try:
            for number, count in zip(numbers, counts, strict=True):
                flight = flights.get(number)
                if flight is not None:
                    flight.num_tokens = count
                    flight.token(count)
        finally:
            wire.release()

    def finish(self, due_s: float, number: int, num_tokens: int, stats: list[Micros | None]) -> None:
        """The last token of a request. `stats` are its `REQUEST_STATS`."""
        flight = self._remove_request(number)
        if flight is not None:
            flight.num_tokens = num_tokens
            for name, value in zip(REQUEST_STATS, stats, strict=True):
                setattr(flight, name, value)
            wire = self._wire
            wire.due_s = due_s
            wire.is_held = True
            try:
                if not flight.is_streamed:
                    wire.measure()
                flight.finish(num_tokens)
            finally:
                wire.release()

    def fail(self, number: int, message: str, status: int) -> None:
        """A request has failed."""
        flight = self._remove_request(number)
        if flight is not None:
            flight.fail(message, status)

    def broken(self, message: str) -> None:
        """The engines have failed, and all requests with them."""
        self.failure = EngineFailedError(message)
        for number in list(self._flights):
            self.fail(number, message, HTTPStatus.INTERNAL_SERVER_ERROR)

    def state(self, state: State) -> None:
        """The state of the engines."""
        self._engine_state = state
        self.engine.stats = state.stats

    def set_backend(self, name: str) -> None:
        """The structured-output backend of all processes."""
        self.structured_outputs.set_name(name)

    def set_faults(self, settings: FaultSettings) -> None:
        """The fault settings of all processes have changed."""
        if self.faults is not None:
            self.faults.settings = settings

    async def counts(self) -> ProcessCounts:
        """Return the counts of this process for a metrics page."""
        metrics, lag_s = self._metrics, self._metrics.lateness.histogram
        return ProcessCounts(
            metrics.http, metrics.rejections, lag_s, metrics.slow_readers.num_cut, metrics.tool_parsing
        )

    def stop(self, at_once: bool) -> None:
        """Stop the process after its open replies or the shutdown timeout, or `at_once`."""
        self.stops.put_nowait(at_once)

    def _remove_request(self, number: int) -> InFlightRequest | None:
        flight = self._flights.pop(number, None)
        if flight is not None:
            del self._number_of[flight.request.id]
        return flight


def _refuse_here() -> NoReturn:
    raise ApiError("This needs a server in one process.", status=501, kind="NotImplementedError")


_logger = logging.getLogger(__name__)

ORPHANED = 1
"""Exit code after the engine process has ended."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The arguments of one of `num_processes` API server processes."""

    options: ServeOptions
    environment: ServerEnvironment
    process_index: int
    num_processes: int
    origin_s: float
    """Reading of the monotonic clock at the simulated instant 0."""
    engines: socket.socket


def run_api_server(assignment: Assignment) -> None:
    """Serve until the engine process stops this one; only the engine process handles signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up_logging(assignment.options.process.log_format)
    raise_file_limit()
    return_large_blocks()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve_assignment(assignment))


async def _serve_assignment(assignment: Assignment) -> None:
    channel = await open_channel(assignment.engines, None, _exit_orphaned)
    try:
        engines, server = await _listening_server(assignment, channel)
    except BlisError as error:
        channel.call(EngineCalls.refused, str(error))
        await channel.close_when_sent()
        return
    channel.call(EngineCalls.listens, server.host, server.port)
    keep_what_exists()
    reporting = asyncio.create_task(_report_death(server, channel))
    is_at_once = await engines.stops.get()
    channel.call(EngineCalls.stops, server.service.delivery.open_replies.number)
    at_once = asyncio.Event()
    hurrying = asyncio.create_task(_hurry_stop(is_at_once, engines.stops, at_once))
    await server.stop(at_once)
    for task in (reporting, hurrying):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await channel.close_when_sent()


async def _listening_server(assignment: Assignment, channel: Channel) -> tuple[RemoteEngines, RunningServer]:
    """Start a server whose engines are at the other end of `channel`, which calls them from now on."""
    options = assignment.options
    deployment = deployment_of(options)
    config, _ = engine_settings(options, deployment)
    wire, slow_readers = WriteCoalescer(Lateness()), SlowReaders(options.network.max_unsent_kib * 1024)
    metrics = RemoteMetrics(wire.lateness, slow_readers, channel)
    takes_any_backend = options.content.structured_outputs.lenient_structured_outputs
    engines = RemoteEngines(config, options.speed, assignment.origin_s, metrics, wire, takes_any_backend)
    channel.receiver = engines
    numbers = itertools.count(assignment.process_index, assignment.num_processes)
    backend = Backend(
        wire, engines, metrics, slow_readers, request_numbers=numbers, structured_outputs=engines.structured_outputs
    )
    service = build_service(options, deployment, assignment.environment, backend, fault_control=engines)
    engines.faults = service.faults
    return engines, await listen(service, reuse_port=True)


async def _report_death(server: RunningServer, channel: Channel) -> None:
    await server.service.lifecycle.death_reported.wait()
    channel.call(EngineCalls.report_death)


async def _hurry_stop(is_at_once: bool, stops: asyncio.Queue[bool], at_once: asyncio.Event) -> None:
    while not is_at_once:
        is_at_once = await stops.get()
    at_once.set()


def _exit_orphaned() -> None:
    """Exit at once because the engine process has ended."""
    _logger.error("stopping: the process of the engines has ended")
    os._exit(ORPHANED)
