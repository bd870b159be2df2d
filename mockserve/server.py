"""The life of the server process: listen, say so, run until told to stop, leave nothing hanging."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from blis_options import OptionError
from engine.cluster.build import notes_on_cluster
from engine.cluster.policies import with_policies
from engine.deployment import Deployment, notes_after
from mockserve.app import build_app
from mockserve.backend import local_backend
from mockserve.cluster.control import InstanceControl
from mockserve.cluster.ports import InstancePorts
from mockserve.config import ServeOptions
from mockserve.deploying import deployment_of
from mockserve.engine_death import engine_death
from mockserve.environment import ServerEnvironment, read_environment
from mockserve.file_limit import raise_file_limit
from mockserve.front.connection import Front, FrontConnection
from mockserve.front.routes import front_routes
from mockserve.front.usual import LARGEST_BODY_BYTES, LARGEST_HEAD_BYTES, Limits, RequestReader
from mockserve.http_errors import PlainErrors
from mockserve.log_lines import fields, set_up_logging
from mockserve.processes.refusals import check_processes
from mockserve.service import Service, build_service
from mockserve.stopping import drain
from mockserve.tls import server_context

CLOSING_GRACE_S = 0.25
"""How long the last bytes may take once replies are done or cut."""

LISTEN_BACKLOG = 2048
"""Connections that may wait to be accepted: a burst of clients must not be turned away for a second."""

NEW_OBJECTS_BEFORE_A_LOOK = 5000
"""How many objects the collector lets come before it looks at them: a request brings hundreds, and no cycles."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunningServer:
    """A server that is listening."""

    service: Service
    runner: web.AppRunner
    front: Front
    listener: asyncio.Server
    host: str
    port: int
    """Address listened on; empty and 0 for a unix socket."""
    uds: str = ""
    ports: InstancePorts | None = None
    """Those of single instances, if they have any."""

    @property
    def instance_ports(self) -> Mapping[int, int]:
        """Ports on which single instances listen, by number."""
        return {} if self.service.cluster is None else self.service.cluster.ports

    async def stop(self, at_once: asyncio.Event | None = None) -> None:
        """Take no new work, let open replies finish within --shutdown-timeout or until `at_once`, then cut them.

        It listens until the replies have ended, to tell those who ask that it is not ready.
        """
        at_once = at_once or asyncio.Event()
        closing = [] if self.ports is None else [self.ports.close_all(at_once)]
        await asyncio.gather(drain(self.service, at_once), *closing)
        self.listener.close()
        await asyncio.gather(self.front.close(CLOSING_GRACE_S), self.runner.cleanup())
        self.service.close()
        if self.uds:
            with suppress(FileNotFoundError):
                os.unlink(self.uds)


def serve(all_options: Sequence[ServeOptions], environment: ServerEnvironment | None = None) -> int:
    """Serve, with a server for each of the options, until SIGINT or SIGTERM. Returns the exit code.

    Raises BlisError for a deployment that cannot be, or an address that cannot be listened on.
    """
    environment = read_environment() if environment is None else environment
    all_options = [with_policies(options) for options in all_options]
    first = all_options[0]
    check_processes(first, environment)
    wanted = [(options, deployment_of(options)) for options in all_options]
    set_up_logging(all_options[0].log_format)
    for note in (*wanted[0][1].notes, *notes_on_cluster(*wanted[0]), *_notes(wanted[0][0])):
        _logger.info("note: %s", note)
    raise_file_limit()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        if first.api_processes > 1:
            code = runner.run(_serve_in_processes(*wanted[0], environment))
        else:
            code = runner.run(_serve_until_signal(wanted, environment))
    for note in dict.fromkeys(note for _, deployment in wanted for note in notes_after(deployment)):
        _logger.info("note: %s", note)
    return code


async def _serve_in_processes(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> int:
    from mockserve.processes.serving import serve_in_processes  # which builds upon all of this

    return await serve_in_processes(options, deployment, environment)


async def start(
    options: ServeOptions, deployment: Deployment, environment: ServerEnvironment | None = None
) -> RunningServer:
    """Listen where the options say; port 0 becomes a free one. Without `environment` the process's own is read."""
    environment = read_environment() if environment is None else environment
    backend = local_backend(options, deployment, environment)
    service = build_service(options, deployment, environment, backend)
    if backend.cluster is not None:
        service.cluster = InstanceControl(service, backend.cluster)
    server = await listen(service)
    if service.cluster is not None and options.instance_ports is not None:
        server.ports = InstancePorts(service.cluster, options.instance_ports, listen)
        try:
            await server.ports.open_all()
        except BaseException:
            await server.stop()
            raise
    return server


async def listen(service: Service, shares_port: bool = False) -> RunningServer:
    """Take connections for `service`. With `shares_port` other processes may listen there, too."""
    options = service.options
    # A client that hangs up cancels its handler, and the handler frees what the request holds.
    runner = web.AppRunner(build_app(service), handler_cancellation=True, shutdown_timeout=CLOSING_GRACE_S)
    await runner.setup()
    front = _front(runner, service)
    try:
        listener = await _listen(partial(FrontConnection, front), options, shares_port)
    except BaseException:
        await runner.cleanup()
        raise
    if options.uds:
        return RunningServer(service, runner, front, listener, "", 0, options.uds)
    host, port = listener.sockets[0].getsockname()[:2]
    return RunningServer(service, runner, front, listener, host, port)


async def _listen(factory: Callable[[], asyncio.Protocol], options: ServeOptions, shares_port: bool) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    tls = server_context(options)
    where = options.uds or f"{options.host}:{options.port}"
    try:
        if options.uds:
            return await loop.create_unix_server(factory, options.uds, ssl=tls, backlog=LISTEN_BACKLOG)
        return await loop.create_server(
            factory, options.host, options.port, ssl=tls, backlog=LISTEN_BACKLOG, reuse_port=shares_port or None
        )
    except OSError as error:
        raise OptionError(f"cannot listen on {where}: {error.strerror or error}") from error


def _notes(options: ServeOptions) -> list[str]:
    """What a user of vLLM's command line should know."""
    ignored = options.accepted_without_effect
    return [f"accepted, without effect here: {' '.join(ignored)}"] if ignored else []


def _front(runner: web.AppRunner, service: Service) -> Front:
    server, options = runner.server, service.options
    assert server is not None  # there is one after setup
    keep_alive_s = service.environment.keep_alive_s
    new_library = partial(
        PlainErrors,
        server,
        loop=asyncio.get_running_loop(),
        access_log=None,
        keepalive_timeout=keep_alive_s,
        max_line_size=options.h11_max_incomplete_event_size,
        max_field_size=options.h11_max_incomplete_event_size,
        max_headers=options.h11_max_header_count,
        # A body is what was sent: vLLM does not unpack one either, and a small one might unpack to any size.
        auto_decompress=False,
    )
    most_body_bytes = options.max_body_mb * 2**20
    limits = Limits(
        most_head_bytes=min(options.h11_max_incomplete_event_size, LARGEST_HEAD_BYTES),
        most_fields=options.h11_max_header_count,
        most_body_bytes=min(most_body_bytes, LARGEST_BODY_BYTES),
    )
    return Front(
        front_routes(runner.app), new_library, service.wire, RequestReader(limits), keep_alive_s, most_body_bytes
    )


def keep_what_exists() -> None:
    """What is there by now lives as long as the process: looking at it again would make the collector's pauses long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_BEFORE_A_LOOK, *gc.get_threshold()[1:])


def startup_line(options: ServeOptions, deployment: Deployment, where: str) -> str:
    """What is served, where, and on what simulated hardware."""
    blocks = deployment.config.total_kv_blocks
    number = f"{options.num_instances} instances, " if options.num_instances > 1 else ""
    return (
        f"serving {options.model_names[0]} on {where} "
        f"({number}{deployment.gpu.name}, tp {deployment.tp}, {blocks:,} KV blocks, {options.latency_model})"
    )


def address(options: ServeOptions, host: str, port: int) -> str:
    """Where clients reach the server."""
    if options.uds:
        return f"unix:{options.uds}"
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if options.ssl_certfile else 'http'}://{shown}:{port}"


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _until_it_must_end(stopping: asyncio.Event, servers: Sequence[RunningServer]) -> None:
    """Return when told to stop, or when an engine has died."""
    endings: list[asyncio.Future[object]] = [asyncio.ensure_future(stopping.wait())]
    if servers and not servers[0].service.environment.keeps_alive_on_engine_death:
        endings.append(asyncio.ensure_future(_note_death([server.service for server in servers])))
    await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
    for each in endings:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each


async def _note_death(services: Sequence[Service]) -> None:
    error = await engine_death(services)
    _logger.error("stopping: the engine has failed: %s", str(error) or type(error).__name__)


async def _serve_until_signal(wanted: Sequence[tuple[ServeOptions, Deployment]], environment: ServerEnvironment) -> int:
    stopping, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Whoever asks a second time does not want to wait.
        loop.add_signal_handler(number, lambda: (at_once if stopping.is_set() else stopping).set())
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), wanted[0][0].startup_s)
    servers: list[RunningServer] = []
    try:
        if not stopping.is_set():
            for options, deployment in wanted:
                servers.append(await start(options, deployment, environment))
            keep_what_exists()
            for (options, deployment), server in zip(wanted, servers, strict=True):
                where = address(options, server.host, server.port)
                told = fields(model=options.model_names[0], address=where)
                _logger.info(startup_line(options, deployment, where), extra=told)
                for instance, port in server.instance_ports.items():
                    _logger.info("instance %d listens on %s", instance, address(options, server.host, port))
        await _until_it_must_end(stopping, servers)
    finally:
        if num_open := sum(server.service.num_answering for server in servers):
            within_s = wanted[0][0].shutdown_timeout
            _logger.info("stopping: open replies: %d, cut after %d s", num_open, within_s, extra=fields(open=num_open))
        await asyncio.gather(*(server.stop(at_once) for server in servers))
    return 0
