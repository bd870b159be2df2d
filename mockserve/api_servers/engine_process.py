"""The process with the engines of a server in several processes: it starts API server processes and exchanges messages
with them.
"""

import asyncio
import logging
import multiprocessing
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

from blis_sim.engine.deployment import Deployment
from blis_sim.options import OptionError, StartError, with_settings
from mockserve.api_servers.api_server import Assignment, run_api_server
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
    FromEngines,
    GetMetricsPage,
    Listening,
    MetricsGatherer,
    MetricsPage,
    Refused,
    RequestStateStats,
    State,
    Stop,
    Stopping,
    Submit,
    Tokens,
    UsesBackend,
    open_channel,
)
from mockserve.engines import RankEngine, build_engines, driver_of, source_of
from mockserve.executor.executor import OffloadExecutor
from mockserve.faults import EngineFaults, FaultSource
from mockserve.http.connection import SlowReaders
from mockserve.listening import address, keep_what_exists, log_application_startup, startup_line
from mockserve.metrics.counters import Lateness
from mockserve.metrics.page import ProcessCounts
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import fields
from mockserve.realtime.driver import EngineFailedError, WriteCoalescer, ignore
from mockserve.realtime.in_flight import InFlightRequest, ParentRequest
from mockserve.serving.lifecycle import ENGINE_CHECK_INTERVAL_S

# The engine process's end: receives requests from API server processes and sends tokens, one message per step.


class RemoteRequest(InFlightRequest):
    """A request whose reply is written in another process."""

    __slots__ = ("_end", "_number", "finish_reason")

    finish_reason: str
    is_streamed = True  # the API server process measures replies that are not streamed

    def __init__(self, end: "ApiServerConnection", message: Submit, parent: ParentRequest | None) -> None:
        super().__init__(message.request, parent)
        self._end = end
        self._number = message.number
        self.finish_reason = message.finish_reason

    def token(self, number: int) -> None:
        self._end.token(self._number, number)

    def finish(self, num_tokens: int) -> None:
        self._end.finish(self._number, num_tokens, self)

    def abort(self, num_tokens: int) -> None:
        self.finish(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self._end.fail(self._number, message, status)


class ApiServerConnection:
    """One API server process, as seen by the engine process."""

    def __init__(self, engines: "EngineSide", send: Callable[[FromEngines], None]) -> None:
        self._engines = engines
        self._send = send
        self._tokens: Tokens | None = None
        """The unsent message that further tokens of its step can join."""
        self._ids: dict[int, str] = {}
        """Engine request ids by the process's request numbers."""
        self._prompt: tuple[int, ParentRequest | None] = (-1, None)

    def on_message(self, message: FromApiServer) -> None:
        """Handle messages for the engines; other messages are ignored."""
        if isinstance(message, Submit):
            number = message.number
            if message.prompt_number != self._prompt[0]:
                parent = ParentRequest(message.num_choices) if message.num_choices > 1 else None
                self._prompt = (message.prompt_number, parent)
            self._ids[number] = message.request.id
            try:
                flight = RemoteRequest(self, message, self._prompt[1])
                self._engines.driver.submit(flight, message.arrived_at, message.rank)
            except EngineFailedError as error:
                self.fail(number, str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
            except ValueError as error:
                self.fail(number, str(error), HTTPStatus.BAD_REQUEST)
        elif isinstance(message, Abort) and (request_id := self._ids.pop(message.number, None)) is not None:
            self._engines.driver.abort(request_id)

    def on_closed(self) -> None:
        """Abort the requests of the process after its end."""
        ids, self._ids = self._ids, {}
        for request_id in ids.values():
            self._engines.driver.abort(request_id)

    def send(self, message: FromEngines) -> None:
        """Send a message after the present tokens."""
        self._tokens = None
        self._send(message)

    def on_sent(self) -> None:
        """Begin a new message of tokens, since queued messages are being sent."""
        self._tokens = None

    def token(self, number: int, count: int) -> None:
        """Send that a request has `count` tokens."""
        due_s = self._engines.wire.due_s
        tokens = self._tokens
        if tokens is None or tokens.due_s != due_s:
            tokens = self._tokens = Tokens(due_s, [], [])
            self._send(tokens)
        tokens.numbers.append(number)
        tokens.counts.append(count)

    def finish(self, number: int, num_tokens: int, flight: InFlightRequest) -> None:
        """Send the end of a request."""
        self._ids.pop(number, None)
        stats = RequestStateStats._make(getattr(flight, name) for name in RequestStateStats._fields)
        self.send(Finish(self._engines.wire.due_s, number, num_tokens, stats))

    def fail(self, number: int, message: str, status: int) -> None:
        """Send the failure of a request."""
        self._ids.pop(number, None)
        self.send(Fail(number, message, status))


class EngineSide:
    """The engines with their API server processes. `wire` must be that of the engines' drivers."""

    def __init__(
        self, engines: Mapping[int, RankEngine], wire: WriteCoalescer, faults: EngineFaults | None = None
    ) -> None:
        self.driver = driver_of(engines)
        self._faults = faults
        self.wire = wire
        self.ends: list[ApiServerConnection] = []
        self._reported: State | None = None
        self._backend: UsesBackend | None = None
        self.driver.on_failure = self._broken

    def add(self, send: Callable[[FromEngines], None]) -> ApiServerConnection:
        """Add an API server process with the function that sends messages to it."""
        end = ApiServerConnection(self, send)
        self.ends.append(end)
        return end

    @property
    def state(self) -> State:
        """Return the state of the engines."""
        driver = self.driver
        active = () if self._faults is None else tuple(self._faults.active)
        return State(driver.engine.stats, driver.num_unfinished_requests, driver.num_waiting_tokens, active)

    def send_state(self) -> None:
        """Send the state of the engines if it has changed since it was last sent."""
        state = self.state
        if state != self._reported:
            self._reported = state
            self.send_all(state)

    def send_initial_state(self, end: ApiServerConnection) -> None:
        """Send the shared state to a process that has begun to listen."""
        end.send(self.state)
        if self._backend is not None:
            end.send(self._backend)

    def use_backend(self, message: UsesBackend) -> None:
        """Set the structured-output backend of all processes to the first one that a process used."""
        if self._backend is None:
            self._backend = message
        self.send_all(self._backend)

    async def change_faults(self, end: ApiServerConnection, message: ChangeFaults) -> None:
        """Change faults of engines in this process and of replies in all processes, then reply."""
        assert self._faults is not None
        problem = ""
        try:
            await self._faults.change(message.settings, message.changes)
        except OptionError as error:
            problem = str(error)
        else:
            self.send_all(FaultSettingsChanged(message.settings))
            self.send_state()
        end.send(FaultsResult(message.query_id, problem))

    def send_all(self, message: FromEngines) -> None:
        """Send one message to every process."""
        for end in self.ends:
            end.send(message)

    def _broken(self, error: BaseException) -> None:
        self.send_all(Broken(str(error) or type(error).__name__))


# The lifecycle of a server in several processes. This process has the engines and starts the API server processes.


class ApiServerProcess:
    """One API server process: its control messages and its end."""

    def __init__(self, process_index: int, engines: EngineSide, gatherer: MetricsGatherer, answer: "Answer") -> None:
        self.process_index = process_index
        self.listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        self.stopping: asyncio.Future[Stopping] = asyncio.get_running_loop().create_future()
        self.death_reported = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolved with the exit code of the process."""
        self._engines = engines
        self._gatherer = gatherer
        self._answer = answer
        self._process: SpawnProcess | None = None
        self._channel: Channel | None = None

    async def start(self, assignment: Assignment, far_end: socket.socket, near_end: socket.socket) -> None:
        """Start the process and a channel to it."""
        self._channel = await open_channel(near_end, self._on_message, ignore)  # its end is handled apart
        self.end = self._engines.add(self._channel.send)
        self._channel.on_sent = self.end.on_sent
        process = multiprocessing.get_context("spawn").Process(
            target=run_api_server, args=(assignment,), name=f"answering {self.process_index}"
        )
        with _signals_blocked():
            process.start()
        far_end.close()
        self._process = process
        asyncio.get_running_loop().add_reader(process.sentinel, self._has_ended)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def stop(self, at_once: bool) -> None:
        """Send a stop message to the process."""
        self.end.send(Stop(at_once))

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None and not self.ended.done():
            self._process.kill()

    def _on_message(self, message: FromApiServer) -> None:
        if isinstance(message, Listening):
            self.listening.set_result(message)
            self._engines.send_initial_state(self.end)
        elif isinstance(message, Refused):
            self.listening.set_exception(OptionError(message.message))
        elif isinstance(message, GetMetricsPage | ChangeFaults):
            self._answer(self, message)
        elif isinstance(message, ProcessCounts):
            self._gatherer.on_message(self.process_index, message)
        elif isinstance(message, DeathReported):
            self.death_reported.set()
        elif isinstance(message, UsesBackend):
            self._engines.use_backend(message)
        elif isinstance(message, Stopping):
            self.stopping.set_result(message)
        else:
            self.end.on_message(message)

    def _has_ended(self) -> None:
        process = self._process
        assert process is not None
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        self.end.on_closed()
        self._gatherer.on_closed(self.process_index)
        self.ended.set_result(process.exitcode or 0)


Answer = Callable[[ApiServerProcess, GetMetricsPage | ChangeFaults], None]


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in processes started within the block, until they have set their handlers.

    Ctrl-C reaches all processes of a terminal, and would end a starting process with a traceback.
    """
    resource_tracker.ensure_running()  # started first: it would lift the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reserved_port(host: str, port: int) -> socket.socket:
    """Return a bound socket that reserves `port`, or a free port for 0, for the API server processes.

    The socket itself does not listen. Raises StartError if the port is in use or unavailable.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise OptionError("--api-server-count must be 1: processes cannot share a port on this system")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if port:
            # Otherwise this server could silently share the port of another server.
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        holder = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        # Connections of an earlier server at this port may not be over for a minute.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)
    except OSError as error:
        holder.close()
        raise _cannot_listen(host, port, error) from error
    return holder


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    return StartError(f"cannot listen on {host}:{port}: {error.strerror or error}")


STATE_EVERY_S = 0.1
"""Interval at which API server processes receive the state of the engines, as in vLLM."""
CLOSING_GRACE_S = 5.0
"""Time limit for the end of a process after its replies."""
FAILED = 1
"""Exit code after a process has ended unexpectedly."""

_logger = logging.getLogger(__name__)


async def serve_in_processes(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> int:
    """Serve until a signal. Returns the exit code. Raises StartError if the port is unavailable."""
    stopping, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (at_once if stopping.is_set() else stopping).set())
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), options.process.startup_s)
    if stopping.is_set():
        return 0
    with reserved_port(options.network.host, options.network.port) as holder:
        server = ApiServerGroup(options, deployment, environment, holder.getsockname()[1])
        try:
            await server.start()
            await server.until_listening_or(stopping)
            return await server.run(stopping)
        finally:
            await server.stop(at_once)


class ApiServerGroup:
    """The engines and their API server processes."""

    def __init__(
        self, options: ServeOptions, deployment: Deployment, environment: ServerEnvironment, port: int
    ) -> None:
        self._options = with_settings(options, port=port)
        self._deployment = deployment
        self._environment = environment
        wire = WriteCoalescer(Lateness(), is_timed=False)  # API server processes measure lateness
        self._ranks = build_engines(options, deployment, environment, wire)
        self._faults = EngineFaults(self._ranks, FaultSource(options.faults.settings, options.faults.fault_seed))
        self._engines = EngineSide(self._ranks, wire, self._faults)
        slow_readers = SlowReaders(options.network.max_unsent_kib * 1024)
        source = source_of(
            options, deployment, self._ranks, wire.lateness, slow_readers, environment.log_stats_interval_s
        )
        self._metrics_source = source
        self._aside = OffloadExecutor()
        self._gatherer = MetricsGatherer(source, self._aside.in_thread)
        self._api_servers: list[ApiServerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all processes."""
        number = self._options.network.num_api_servers
        origin_s = self._ranks[0].driver.seconds_at(0)
        # Engine faults are planned in this process only.
        options = with_settings(self._options, fault_engine=())
        for process_index in range(number):
            near_end, far_end = socket.socketpair()
            api_server = ApiServerProcess(process_index, self._engines, self._gatherer, self._answer)
            assignment = Assignment(options, self._environment, process_index, number, origin_s, far_end)
            await api_server.start(assignment, far_end, near_end)
            self._api_servers.append(api_server)
        self._run_in_background(self._send_state())
        self._metrics_source.record_history(is_recording=True)

    async def until_listening_or(self, stopping: asyncio.Event) -> None:
        """Return when all processes listen, and log it. Return earlier after a signal or the end of a process.

        Raises OptionError if a process cannot serve with its settings.
        """
        listening = asyncio.gather(*(each.listening for each in self._api_servers))
        await _first_of(listening, asyncio.ensure_future(stopping.wait()), *(each.ended for each in self._api_servers))
        if listening.done():
            first, *_ = listening.result()
            keep_what_exists()
            self._faults.plan(self._options.faults.timed)
            options, number = self._options, len(self._api_servers)
            where = address(options, first.host, first.port)
            stops = fields(model=options.model_names[0], address=where, processes=number)
            _logger.info("%s, %d processes answer", startup_line(options, self._deployment, where), number, extra=stops)
            log_application_startup([each.pid for each in self._api_servers])

    async def run(self, stopping: asyncio.Event) -> int:
        """Return when the server must end, with its exit code."""
        dying = asyncio.ensure_future(self._engine_death())
        stopped = asyncio.ensure_future(stopping.wait())
        await _first_of(stopped, dying, *(each.ended for each in self._api_servers))
        on_closed = [each for each in self._api_servers if each.ended.done()]
        for each in on_closed:
            _logger.error("stopping: process %d has ended with code %d", each.pid, each.ended.result())
        if dying.done():
            _logger.error("stopping: the engine has failed: %s", dying.result())
        dying.cancel()
        return FAILED if on_closed else 0

    async def stop(self, at_once: asyncio.Event) -> None:
        """Wait for open replies within --shutdown-timeout or until `at_once`, then end all processes."""
        running = [each for each in self._api_servers if not each.ended.done()]
        network = self._options.network
        if network.abrupt_shutdown:
            self._engines.driver.close()
        for each in running:
            if each.listening.done():
                each.stop(at_once=at_once.is_set())
            else:  # it has no open replies
                each.kill()
        self._run_in_background(self._log_open_replies(running))
        self._run_in_background(self._hurry(running, at_once))
        if running:
            within_s = None if network.abrupt_shutdown else network.shutdown_timeout + CLOSING_GRACE_S
            await asyncio.wait([each.ended for each in running], timeout=within_s)
        for each in running:
            each.kill()
        await asyncio.gather(*(each.ended for each in running))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._faults.close()
        self._metrics_source.record_history(is_recording=False)
        self._aside.close()
        self._engines.driver.close()

    async def _engine_death(self) -> BaseException:
        """Return the failure of an engine, once a client has received the error or at the next periodic check."""
        stops = [asyncio.ensure_future(each.death_reported.wait()) for each in self._api_servers]
        while (failure := self._engines.driver.failure) is None:
            await asyncio.wait(stops, timeout=ENGINE_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
        return failure

    async def _send_state(self) -> None:
        while True:
            self._engines.send_state()
            await asyncio.sleep(STATE_EVERY_S)

    async def _log_open_replies(self, running: Sequence[ApiServerProcess]) -> None:
        stops = await asyncio.gather(*(each.stopping for each in running))
        num_open = sum(each.num_open for each in stops)
        if num_open and not self._options.network.abrupt_shutdown:
            within_s = self._options.network.shutdown_timeout
            _logger.info("stopping: open replies: %d, cut after %d s", num_open, within_s, extra=fields(open=num_open))

    async def _hurry(self, running: Sequence[ApiServerProcess], at_once: asyncio.Event) -> None:
        await at_once.wait()
        for each in running:
            each.stop(at_once=True)

    def _answer(self, sender: ApiServerProcess, message: GetMetricsPage | ChangeFaults) -> None:
        async def answer() -> None:
            if isinstance(message, ChangeFaults):
                await self._engines.change_faults(sender.end, message)
                return
            senders = {each.process_index: each.end.send for each in self._api_servers if not each.ended.done()}
            page = await self._gatherer.page(senders, message)
            sender.end.send(MetricsPage(message.query_id, page))

        self._run_in_background(answer())

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a background task."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _first_of(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
