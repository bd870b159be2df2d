"""An API server process: it reads requests and writes replies; tokens come from the engine process."""

import asyncio
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros
from blis_sim.options import BlisError, OptionError
from mockserve.api_servers.channel import (
    Abort,
    Broken,
    ChangeFaults,
    Channel,
    DeathReported,
    Fail,
    FaultSettingsChanged,
    FaultsResult,
    Finish,
    FromApiServer,
    GetCounts,
    Listening,
    MetricsPage,
    Queries,
    Refused,
    RemoteMetrics,
    State,
    Stop,
    Stopping,
    Submit,
    Tokens,
    UsesBackend,
    open_channel,
)
from mockserve.engines import Backend, StructuredOutputBackend, deployment_of, engine_settings
from mockserve.executor.memory import return_large_blocks
from mockserve.faults import Changes
from mockserve.http.connection import SlowReaders
from mockserve.http.sockets import raise_file_limit
from mockserve.listening import RunningServer, fastest_loop, keep_what_exists, listen
from mockserve.metrics.counters import Lateness
from mockserve.options.environment import ServerEnvironment
from mockserve.options.faults import FaultSettings, TimedFault
from mockserve.options.serve import ServeOptions
from mockserve.options.server import set_up_logging
from mockserve.protocol.errors import ApiError
from mockserve.realtime.driver import EngineFailedError, WriteCoalescer
from mockserve.realtime.in_flight import InFlightRequest, ParentRequest
from mockserve.serving.service import build_service

# Fault control of an API server process, whose engines are in another process.


class RemoteFaults:
    """Shows the latest reported engine faults, and sends changes for all processes to the engine process."""

    def __init__(self, send: Callable[[FromApiServer], None]) -> None:
        self._active: tuple[str, ...] = ()
        self.queries: Queries[str] = Queries(send)

    @property
    def active(self) -> Sequence[str]:
        """Return the engine faults in force."""
        return list(self._active)

    def plan(self, faults: Sequence[TimedFault]) -> None:
        """Do nothing: the engine process plans the faults of the command line."""

    async def change(self, settings: FaultSettings, changes: Changes) -> None:
        """Change fault settings, and start and end engine faults. Raises OptionError without any change."""
        problem = await self.queries.ask(lambda query: ChangeFaults(query, settings, changes))
        if problem:
            raise OptionError(problem)

    def close(self) -> None:
        """Do nothing: no fault is planned in this process."""

    def state(self, message: State) -> None:
        """Store the engine faults that the engine process has reported."""
        self._active = message.engine_faults


T = TypeVar("T")


@dataclass(slots=True)
class RemoteEngineInfo:
    """An engine in another process: its configuration, and its latest reported stats."""

    config: EngineConfig
    stats: EngineStats


class RemoteDriver:
    """A driver whose engines are in another process. Use it from one event loop only.

    `origin_s` is the reading of the monotonic clock at the simulated instant 0. `send` sends messages to the engine
    process.
    """

    def __init__(
        self,
        config: EngineConfig,
        speed: float,
        origin_s: float,
        wire: WriteCoalescer,
        send: Callable[[FromApiServer], None],
    ) -> None:
        self.engine = RemoteEngineInfo(config, EngineStats(0, 0, config.total_kv_blocks, 0, 0, 0))
        self.failure: BaseException | None = None
        """The error that broke the engines; from then on every request fails."""
        self._us_per_s = speed * 1e6
        self._origin_s = origin_s
        self._wire = wire
        self._send = send
        self._flights: dict[int, InFlightRequest] = {}
        self._number_of: dict[str, int] = {}
        self._numbers = itertools.count()
        self._prompt_numbers = itertools.count()
        self._prompt: tuple[ParentRequest | None, int] = (None, 0)
        """The latest submitted choices, and the number of their prompt."""
        self._engine_state = State(self.engine.stats, 0, 0)

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
        """The present instant in simulated microseconds."""
        return self.instant_at(time.monotonic())

    def instant_at(self, reading_s: float) -> Micros:
        """The simulated instant at which the monotonic clock reads `reading_s`."""
        return int((reading_s - self._origin_s) * self._us_per_s)

    def pending_arrival(self, at: Micros) -> AbstractContextManager[None]:
        """Do nothing: the engines do not wait for requests that another process prepares."""
        return nullcontext()

    def submit(self, flight: InFlightRequest, arrived_at: Micros | None = None, rank: int | None = None) -> None:
        """Submit a request, which gets its tokens. Raises EngineFailedError if the engines have failed."""
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
        self._send(Submit(number, request, at, flight.finish_reason, self._prompt[1], num_choices, rank))

    def abort(self, request_id: str) -> None:
        """Abort `request_id`, whose client has disconnected, and free its blocks. Its reply gets no more calls."""
        number = self._number_of.pop(request_id, None)
        if number is not None:
            del self._flights[number]
            self._send(Abort(number))

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

    # --- messages from the engine process ---

    def tokens(self, message: Tokens) -> None:
        """Deliver the tokens of several requests to their replies; tokens of aborted requests are dropped."""
        flights, wire = self._flights, self._wire
        wire.due_s = message.due_s
        wire.is_held = True
        try:
            for number, count in zip(message.numbers, message.counts, strict=True):
                flight = flights.get(number)
                if flight is not None:
                    flight.num_tokens = count
                    flight.token(count)
        finally:
            wire.release()

    def finish(self, message: Finish) -> None:
        """Complete a request."""
        flight = self._remove_request(message.number)
        if flight is not None:
            flight.num_tokens = message.num_tokens
            for name, value in message.stats._asdict().items():
                setattr(flight, name, value)
            wire = self._wire
            wire.due_s = message.due_s
            wire.is_held = True
            try:
                if not flight.is_streamed:
                    wire.measure()
                flight.finish(message.num_tokens)
            finally:
                wire.release()

    def fail(self, message: Fail) -> None:
        """Fail a request."""
        flight = self._remove_request(message.number)
        if flight is not None:
            flight.fail(message.message, message.status)

    def broken(self, message: Broken) -> None:
        """Fail all requests."""
        self.failure = EngineFailedError(message.message)
        for number in list(self._flights):
            self.fail(Fail(number, message.message, HTTPStatus.INTERNAL_SERVER_ERROR))

    def state(self, message: State) -> None:
        """Store the reported state of the engines."""
        self._engine_state = message
        self.engine.stats = message.stats

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
    """Serve until the engine process sends a stop message; only the engine process handles signals."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up_logging(assignment.options.process.log_format)
    raise_file_limit()
    return_large_blocks()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve_assignment(assignment))


async def _serve_assignment(assignment: Assignment) -> None:
    stops: asyncio.Queue[Stop] = asyncio.Queue()
    handlers: dict[type, Callable[[Any], None]] = {Stop: stops.put_nowait}
    channel = await open_channel(assignment.engines, partial(_handle_message, handlers), _exit_orphaned)
    try:
        server = await _listening_server(assignment, channel, handlers)
    except BlisError as error:
        channel.send(Refused(str(error)))
        await channel.close_when_sent()
        return
    channel.send(Listening(server.host, server.port))
    keep_what_exists()
    reporting = asyncio.create_task(_report_death(server, channel.send))
    stop = await stops.get()
    channel.send(Stopping(server.service.delivery.open_replies.number))
    at_once = asyncio.Event()
    hurrying = asyncio.create_task(_hurry_stop(stop, stops, at_once))
    await server.stop(at_once)
    for task in (reporting, hurrying):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await channel.close_when_sent()


async def _listening_server(
    assignment: Assignment, channel: Channel, handlers: dict[type, Callable[[Any], None]]
) -> RunningServer:
    """Start a server whose engines are at the other end of `channel`, and register handlers of their messages."""
    options = assignment.options
    deployment = deployment_of(options)
    config, _ = engine_settings(options, deployment)
    wire, slow_readers = WriteCoalescer(Lateness()), SlowReaders(options.network.max_unsent_kib * 1024)
    driver = RemoteDriver(config, options.speed, assignment.origin_s, wire, channel.send)
    metrics = RemoteMetrics(wire.lateness, slow_readers, channel.send)
    faults = RemoteFaults(channel.send)

    def state(message: State) -> None:
        driver.state(message)
        faults.state(message)

    loop = asyncio.get_running_loop()
    structured_outputs = StructuredOutputBackend(
        options.content.structured_outputs.lenient_structured_outputs,
        # Requests may be planned on a thread, but the channel must be used from the event loop.
        lambda name: loop.call_soon_threadsafe(channel.send, UsesBackend(name)),
    )
    handlers.update(
        {
            Tokens: driver.tokens,
            Finish: driver.finish,
            Fail: driver.fail,
            Broken: driver.broken,
            State: state,
            FaultsResult: lambda message: faults.queries.answered(message.query_id, message.problem),
            UsesBackend: lambda message: structured_outputs.set_name(message.name),
            GetCounts: metrics.counts,
            MetricsPage: lambda message: metrics.queries.answered(message.query_id, message.page),
        }
    )
    numbers = itertools.count(assignment.process_index, assignment.num_processes)
    backend = Backend(
        wire, driver, metrics, slow_readers, request_numbers=numbers, structured_outputs=structured_outputs
    )
    service = build_service(options, deployment, assignment.environment, backend, fault_control=faults)
    handlers[FaultSettingsChanged] = lambda message: setattr(service.faults, "settings", message.settings)
    return await listen(service, reuse_port=True)


async def _report_death(server: RunningServer, send: Callable[[FromApiServer], None]) -> None:
    await server.service.lifecycle.death_reported.wait()
    send(DeathReported())


async def _hurry_stop(stop: Stop, stops: asyncio.Queue[Stop], at_once: asyncio.Event) -> None:
    while not stop.at_once:
        stop = await stops.get()
    at_once.set()


def _handle_message(handlers: Mapping[type, Callable[[Any], None]], message: object) -> None:
    """Pass a message to the handler of its type; messages without a handler are ignored."""
    handler = handlers.get(type(message))
    if handler is not None:
        handler(message)


def _exit_orphaned() -> None:
    """Exit at once because the engine process has ended."""
    _logger.error("stopping: the process of the engines has ended")
    os._exit(ORPHANED)
