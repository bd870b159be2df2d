"""The process with the engines of a server in several processes: it starts API server processes and exchanges messages
with them.
"""

import asyncio
import logging
import multiprocessing
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any, Concatenate, ParamSpec

from blis_sim.engine.deployment import Deployment
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError, StartError, with_settings
from mockserve.api_servers.api_server import Assignment, RemoteEngines, run_api_server
from mockserve.api_servers.channel import REQUEST_STATS, Channel, EngineCalls, State, open_channel
from mockserve.engines import build_engines, driver_of, source_of
from mockserve.executor.executor import OffloadExecutor
from mockserve.faults import Changes, EngineFaults, FaultSource
from mockserve.http.connection import SlowReaders
from mockserve.listening import address, keep_what_exists, log_application_startup, startup_line
from mockserve.metrics.counters import Lateness
from mockserve.metrics.page import InThread, MetricsSource, ProcessCounts, sum_of_parts
from mockserve.options.environment import ServerEnvironment
from mockserve.options.faults import FaultSettings
from mockserve.options.serve import ServeOptions
from mockserve.options.server import fields
from mockserve.realtime.driver import EngineFailedError, WriteCoalescer, ignore
from mockserve.realtime.in_flight import InFlightRequest, ParentRequest
from mockserve.serving.lifecycle import ENGINE_CHECK_INTERVAL_S

P = ParamSpec("P")


class RemoteRequest(InFlightRequest):
    """A request whose reply is written in another process."""

    __slots__ = ("_number", "_process", "finish_reason")

    finish_reason: str
    is_streamed = True  # the API server process measures replies that are not streamed

    def __init__(
        self, process: "ApiServerProcess", number: int, request: Request, parent: ParentRequest | None, reason: str
    ) -> None:
        super().__init__(request, parent)
        self._process = process
        self._number = number
        self.finish_reason = reason

    def token(self, number: int) -> None:
        self._process.send_token(self._number, number)

    def finish(self, num_tokens: int) -> None:
        stats = [getattr(self, name) for name in REQUEST_STATS]
        self._process.send_finish(self._number, num_tokens, stats)

    def abort(self, num_tokens: int) -> None:
        self.finish(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self._process.send_failure(self._number, message, status)


class ApiServerProcess(EngineCalls):
    """One API server process, as seen by the engine process, which answers its calls here."""

    channel: Channel

    def __init__(self, group: "ApiServerGroup") -> None:
        self.address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        """Resolved with host and port once the process accepts connections."""
        self.num_open: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolved with the number of open replies once the process accepts no more connections."""
        self.death_reported = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Resolved with the exit code of the process."""
        self._group = group
        self._process: SpawnProcess | None = None
        self._tokens: tuple[object, float, list[int], list[int]] = (None, 0.0, [], [])
        """The latest message of tokens: further tokens that are due with it join it until another one follows."""
        self._ids: dict[int, str] = {}
        """Engine request ids by the process's request numbers."""
        self._prompt: tuple[int, ParentRequest | None] = (-1, None)

    async def start(self, assignment: Assignment, far_end: socket.socket, near_end: socket.socket) -> None:
        """Start the process and a channel to it."""
        self.channel = await open_channel(near_end, self, ignore)  # its end is handled apart
        process = multiprocessing.get_context("spawn").Process(
            target=run_api_server, args=(assignment,), name=f"answering {assignment.process_index}"
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

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None and not self.ended.done():
            self._process.kill()

    def send_token(self, number: int, count: int) -> None:
        """Send that a request has `count` tokens."""
        due_s, channel = self._group.wire.due_s, self.channel
        message, known_due_s, numbers, counts = self._tokens
        if not channel.waiting or channel.waiting[-1] is not message or known_due_s != due_s:
            numbers, counts = [], []
            channel.call(RemoteEngines.tokens, due_s, numbers, counts)
            self._tokens = (channel.waiting[-1], due_s, numbers, counts)
        numbers.append(number)
        counts.append(count)

    def send_finish(self, number: int, num_tokens: int, stats: list[Micros | None]) -> None:
        """Send the end of a request."""
        self._ids.pop(number, None)
        self.channel.call(RemoteEngines.finish, self._group.wire.due_s, number, num_tokens, stats)

    def send_failure(self, number: int, message: str, status: int) -> None:
        """Send the failure of a request."""
        self._ids.pop(number, None)
        self.channel.call(RemoteEngines.fail, number, message, status)

    def _has_ended(self) -> None:
        """Abort the requests of the process after its end."""
        process = self._process
        assert process is not None
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        ids, self._ids = self._ids, {}
        for request_id in ids.values():
            self._group.driver.abort(request_id)
        self.ended.set_result(process.exitcode or 0)

    # --- calls of the process ---

    def listens(self, host: str, port: int) -> None:
        self.address.set_result((host, port))
        self.channel.call(RemoteEngines.state, self._group.state)
        if self._group.backend is not None:
            self.channel.call(RemoteEngines.set_backend, self._group.backend)

    def refused(self, message: str) -> None:
        self.address.set_exception(OptionError(message))

    def submit(
        self,
        number: int,
        request: Request,
        arrived_at: Micros,
        finish_reason: str,
        prompt_number: int,
        num_choices: int,
        rank: int | None,
    ) -> None:
        if prompt_number != self._prompt[0]:
            self._prompt = (prompt_number, ParentRequest(num_choices) if num_choices > 1 else None)
        self._ids[number] = request.id
        try:
            flight = RemoteRequest(self, number, request, self._prompt[1], finish_reason)
            self._group.driver.submit(flight, arrived_at, rank)
        except EngineFailedError as error:
            self.send_failure(number, str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        except ValueError as error:
            self.send_failure(number, str(error), HTTPStatus.BAD_REQUEST)

    def abort(self, number: int) -> None:
        request_id = self._ids.pop(number, None)
        if request_id is not None:
            self._group.driver.abort(request_id)

    async def metrics_page(self, names: tuple[str, ...], accept: str, is_history: bool) -> bytes:
        return await self._group.metrics_page(names, accept, is_history)

    def report_death(self) -> None:
        self.death_reported.set()

    def use_backend(self, name: str) -> None:
        self._group.backend = self._group.backend or name
        self._group.call_all(RemoteEngines.set_backend, self._group.backend)

    async def change_faults(self, settings: FaultSettings, changes: Changes) -> None:
        await self._group.faults.change(settings, changes)
        self._group.call_all(RemoteEngines.set_faults, settings)
        self._group.send_state()

    def stops(self, num_open: int) -> None:
        self.num_open.set_result(num_open)


WAIT_S = 2.0
"""Timeout for the counts of a process, after which its previous counts are used."""


class MetricsGatherer:
    """Collects the counts of all processes. An ended process contributes its last counts."""

    def __init__(self, source: MetricsSource, in_thread: InThread) -> None:
        """A page of many engines is written by `in_thread`, one page after the other."""
        self._source = source
        self._in_thread = in_thread
        self._writing = asyncio.Lock()
        self._known: dict[int, ProcessCounts] = {}
        """Latest counts by process."""

    async def page(
        self,
        ask: Mapping[int, Callable[[], Awaitable[ProcessCounts]]],
        names: tuple[str, ...] = (),
        accept: str = "",
        is_history: bool = False,
    ) -> bytes:
        """Return the metrics page or the metrics over time; `ask` asks each running process for its counts."""

        async def asked(process_index: int, counts: Callable[[], Awaitable[ProcessCounts]]) -> None:
            with suppress(ConnectionResetError):
                self._known[process_index] = await counts()

        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(asked(*each) for each in ask.items())), WAIT_S)
        async with self._writing:
            found = sum_of_parts(self._source, list(self._known.values()))
            if is_history:
                return await found.history_json()
            return await found.page(names, accept, self._in_thread)


# The lifecycle of a server in several processes. This process has the engines and starts the API server processes.


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
        self.wire = WriteCoalescer(Lateness(), is_timed=False)  # API server processes measure lateness
        ranks = build_engines(options, deployment, environment, self.wire)
        self.driver = driver_of(ranks)
        self.driver.on_failure = self._broken
        self.faults = EngineFaults(ranks, FaultSource(options.faults.settings, options.faults.fault_seed))
        self.backend: str | None = None
        """The structured-output backend of all processes: the first one that a process used."""
        self._reported: State | None = None
        slow_readers = SlowReaders(options.network.max_unsent_kib * 1024)
        self._metrics_source = source_of(
            options, deployment, ranks, self.wire.lateness, slow_readers, environment.log_stats_interval_s
        )
        self._aside = OffloadExecutor()
        self._gatherer = MetricsGatherer(self._metrics_source, self._aside.in_thread)
        self._api_servers: list[ApiServerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        """Return the state of the engines."""
        driver = self.driver
        stats, active = driver.engine.stats, tuple(self.faults.active)
        return State(stats, driver.num_unfinished_requests, driver.num_waiting_tokens, active)

    def send_state(self) -> None:
        """Send the state of the engines if it has changed since it was last sent."""
        state = self.state
        if state != self._reported:
            self._reported = state
            self.call_all(RemoteEngines.state, state)

    def call_all(self, method: Callable[Concatenate[Any, P], object], *arguments: P.args, **named: P.kwargs) -> None:
        """Call a method in every process."""
        for each in self._api_servers:
            each.channel.call(method, *arguments, **named)

    async def metrics_page(self, names: tuple[str, ...], accept: str, is_history: bool) -> bytes:
        """Return the metrics page of all processes, or the metrics over time."""
        running = enumerate(self._api_servers)
        ask = {
            number: partial(each.channel.ask, RemoteEngines.counts) for number, each in running if not each.ended.done()
        }
        return await self._gatherer.page(ask, names, accept, is_history)

    async def start(self) -> None:
        """Start all processes."""
        number = self._options.network.num_api_servers
        origin_s = self.driver.seconds_at(0)
        # Engine faults are planned in this process only.
        options = with_settings(self._options, fault_engine=())
        for process_index in range(number):
            near_end, far_end = socket.socketpair()
            api_server = ApiServerProcess(self)
            assignment = Assignment(options, self._environment, process_index, number, origin_s, far_end)
            await api_server.start(assignment, far_end, near_end)
            self._api_servers.append(api_server)
        self._run_in_background(self._keep_sending_state())
        self._metrics_source.record_history(is_recording=True)

    async def until_listening_or(self, stopping: asyncio.Event) -> None:
        """Return when all processes listen, and log it. Return earlier after a signal or the end of a process.

        Raises OptionError if a process cannot serve with its settings.
        """
        listening = asyncio.gather(*(each.address for each in self._api_servers))
        await _first_of(listening, asyncio.ensure_future(stopping.wait()), *(each.ended for each in self._api_servers))
        if listening.done():
            (host, port), *_ = listening.result()
            keep_what_exists()
            self.faults.plan(self._options.faults.timed)
            options, number = self._options, len(self._api_servers)
            where = address(options, host, port)
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
            self.driver.close()
        for each in running:
            if each.address.done():
                each.channel.call(RemoteEngines.stop, at_once.is_set())
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
        self.faults.close()
        self._metrics_source.record_history(is_recording=False)
        self._aside.close()
        self.driver.close()

    async def _engine_death(self) -> BaseException:
        """Return the failure of an engine, once a client has received the error or at the next periodic check."""
        stops = [asyncio.ensure_future(each.death_reported.wait()) for each in self._api_servers]
        while (failure := self.driver.failure) is None:
            await asyncio.wait(stops, timeout=ENGINE_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
        return failure

    def _broken(self, error: BaseException) -> None:
        self.call_all(RemoteEngines.broken, str(error) or type(error).__name__)

    async def _keep_sending_state(self) -> None:
        while True:
            self.send_state()
            await asyncio.sleep(STATE_EVERY_S)

    async def _log_open_replies(self, running: Sequence[ApiServerProcess]) -> None:
        num_open = sum(await asyncio.gather(*(each.num_open for each in running)))
        if num_open and not self._options.network.abrupt_shutdown:
            within_s = self._options.network.shutdown_timeout
            _logger.info("stopping: open replies: %d, cut after %d s", num_open, within_s, extra=fields(open=num_open))

    async def _hurry(self, running: Sequence[ApiServerProcess], at_once: asyncio.Event) -> None:
        await at_once.wait()
        for each in running:
            each.channel.call(RemoteEngines.stop, True)

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a background task."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _first_of(*awaited: asyncio.Future[Any]) -> None:
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
