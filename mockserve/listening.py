"""A listening server: its event loop, its application behind a socket, and its shutdown."""

import asyncio
import codecs
import gc
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from blis_sim.engine.deployment import Deployment
from blis_sim.options import OptionError, StartError
from blis_sim.options.registry import Registry
from mockserve.engines import local_backend
from mockserve.http.application import PlainErrorConnection, build_app, fast_routes
from mockserve.http.connection import (
    LARGEST_BODY_BYTES,
    LARGEST_HEAD_BYTES,
    HttpConnection,
    HttpLimits,
    HttpListener,
    RequestReader,
)
from mockserve.http.sockets import listening_sockets, server_context
from mockserve.options.environment import ServerEnvironment, read_environment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import in_uvicorn_form
from mockserve.routes.control import dashboard_page
from mockserve.serving.instances import InstanceControl
from mockserve.serving.lifecycle import first_of
from mockserve.serving.service import Service, build_service

if TYPE_CHECKING:
    from mockserve.http.sockets import UnixSocket


_logger = logging.getLogger(__name__)

GC_THRESHOLD_OBJECTS = 5000
"""New objects between two collections: a request makes hundreds, without reference cycles."""

JSON_ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
"""Encodings that `json.detect_encoding` finds, except UTF-8."""


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's loop factory if uvloop is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def keep_what_exists() -> None:
    """Exclude all present objects from garbage collection, since scanning them would make its pauses long."""
    _preload_files()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, *gc.get_threshold()[1:])


def _preload_files() -> None:
    """Read files that a first request would otherwise read, blocking the event loop.

    Python imports a codec when it is first used, and JSON may have each of these encodings.
    """
    dashboard_page()
    for encoding in JSON_ENCODINGS:
        codecs.lookup(encoding)


def startup_line(options: ServeOptions, deployment: Deployment, where: str) -> str:
    """Return the line that a started server prints: model, address, and, unless times are set, simulated hardware."""
    number = f"{options.cluster.num_instances} instances, " if options.cluster.num_instances > 1 else ""
    blocks = f"{deployment.config.total_kv_blocks:,} KV blocks"
    if not options.timing.sets_times:
        what = f"{deployment.gpu.name}, tp {deployment.tp}, {blocks}, {deployment.latency_name}"
    else:
        what = f"{blocks}, set times"
    return f"serving {options.model_names[0]} on {where} ({number}{what})"


def log_application_startup(pids: Iterable[int]) -> None:
    """Log the lines with which vLLM's web server says that it answers; scripts wait for the last of them."""
    for pid in pids:
        _logger.info("Started server process [%d]", pid, extra=in_uvicorn_form(pid=pid))
        _logger.info("Waiting for application startup.", extra=in_uvicorn_form())
        _logger.info("Application startup complete.", extra=in_uvicorn_form())


def address(options: ServeOptions, host: str, port: int) -> str:
    """Return the address at which clients reach the server."""
    if options.network.uds:
        return f"unix:{options.network.uds}"
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if options.network.tls.serves_https else "grpc" if options.network.grpc else "http"
    return f"{scheme}://{shown}:{port}"


CLOSING_GRACE_S = 0.25
"""Time limit for sending the last bytes after replies have ended or been cut."""

LISTEN_BACKLOG = 2048
"""Connections that may wait to be accepted: a burst of clients must not be refused."""


class ListeningServer(Protocol):
    """A server that is listening, for HTTP or gRPC."""

    @property
    def service(self) -> Service: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def instance_ports(self) -> Mapping[int, int]:
        """Ports of single instances, by instance number."""
        ...

    async def stop(self, at_once: asyncio.Event | None = None) -> None:
        """Refuse new requests, wait for open replies up to --shutdown-timeout or until `at_once`, then cut them."""
        ...


class ServerBehindHttp(Protocol):
    """A server for the HTTP/2 connections that come to the port of HTTP."""

    @property
    def path(self) -> str:
        """The unix socket that it listens on."""
        ...

    async def stop(self) -> None:
        """End all calls."""
        ...


class FrontConnections(Protocol):
    """Connections of clients in front of connections of the server."""

    def new(self) -> asyncio.Protocol:
        """A connection of a client."""
        ...

    async def close(self, grace_s: float) -> None:
        """Close all connections, after at most `grace_s`."""
        ...


SERVERS: Registry[Any] = Registry("blis.servers")
"""Other ways to serve, each a coroutine function of an installed package.

`grpc` takes a service and returns a ListeningServer, `grpc-behind-http` a service and returns a ServerBehindHttp.
`middleware` takes a maker of connections, the most bytes of a body and a service, and returns FrontConnections.
"""


@dataclass(slots=True)
class RunningServer:
    """A server that is listening for HTTP."""

    service: Service
    runner: web.AppRunner
    http_listener: HttpListener
    listeners: Sequence[asyncio.Server]
    """The listening socket of each address of the host."""
    host: str
    port: int
    """Port listened on; 0 for a unix socket, whose host is empty."""
    uds: "UnixSocket | None" = None
    middleware_connections: FrontConnections | None = None
    """Client connections in front of middleware, if there is middleware."""
    calls: ServerBehindHttp | None = None
    """The gRPC server that shares the port, if any."""

    @property
    def instance_ports(self) -> Mapping[int, int]:
        """Ports of single instances, by instance number."""
        return {} if self.service.cluster is None else self.service.cluster.ports

    async def stop(self, at_once: asyncio.Event | None = None) -> None:
        """Refuse new requests, wait for open replies up to --shutdown-timeout or until `at_once`, then cut them.

        The server listens until the replies have ended, so that `/health` can report that it is not ready. With
        --abrupt-shutdown it falls silent instead, and waits for its clients or `at_once`.
        """
        at_once = at_once or asyncio.Event()
        closing = [] if self.service.cluster is None else [self.service.cluster.close_ports(at_once)]
        ending = self._fall_silent if self.service.options.network.abrupt_shutdown else self.service.lifecycle.drain
        await asyncio.gather(ending(at_once), *closing)
        if self.uds is not None:
            self.uds.remove()  # while the socket is open no other file can have its inode
        for listener in self.listeners:
            listener.close()
        middleware_connections = (
            [] if self.middleware_connections is None else [self.middleware_connections.close(CLOSING_GRACE_S)]
        )
        if self.calls is not None:
            await self.calls.stop()
        await asyncio.gather(self.http_listener.close(CLOSING_GRACE_S), self.runner.cleanup(), *middleware_connections)
        self.service.metrics_source.record_history(is_recording=False)
        self.service.close()
        await self.service.delivery.close_observers()

    async def _fall_silent(self, at_once: asyncio.Event) -> None:
        """Close the port and stop all tokens; return when every client has hung up, or when `at_once` is set."""
        self.service.lifecycle.is_stopping = True
        self.service.delivery.driver.close()
        self.service.metrics_source.record_history(is_recording=False)
        _logger.info("Shutting down", extra=in_uvicorn_form())
        for listener in self.listeners:
            listener.close()
        if self.runner.server is not None:
            self.runner.server.pre_shutdown()  # closes idle connections of aiohttp
        self.http_listener.close_idle()
        await asyncio.sleep(0)  # closed connections leave in the next turn
        if self.http_listener.connections:
            _logger.info("Waiting for connections to close. (CTRL+C to force quit)", extra=in_uvicorn_form())
        await first_of(self.http_listener.until_empty(), at_once.wait())


async def start(
    options: ServeOptions,
    deployment: Deployment,
    environment: ServerEnvironment | None = None,
    vocabulary_source: Service | None = None,
) -> ListeningServer:
    """Listen at the address of the options; port 0 selects a free port. The default `environment` is that of the
    process. The vocabulary is shared with the service `vocabulary_source`, if given."""
    environment = read_environment() if environment is None else environment
    backend = local_backend(options, deployment, environment)
    service = build_service(options, deployment, environment, backend, vocabulary_source)
    control = None if backend.cluster is None else InstanceControl(service, backend.cluster)
    service.cluster = control
    if options.network.grpc:
        calls: ListeningServer = await SERVERS["grpc"](service)
        return calls
    server = await listen(service)
    if options.process.shares_port_with_grpc and not service.api_keys:  # gRPC takes no key
        server.calls = await _open_calls(service, server.http_listener)
    if control is not None and options.instances.instance_ports is not None:
        try:
            await control.open_ports(listen)
        except BaseException:
            await server.stop()
            raise
    return server


async def _open_calls(service: Service, http_listener: HttpListener) -> ServerBehindHttp | None:
    """Serve gRPC at the port of HTTP, if its libraries are installed."""
    try:
        calls: ServerBehindHttp = await SERVERS["grpc-behind-http"](service)
    except OptionError as error:
        _logger.info("note: gRPC is not served at the port: %s", error)
        return None
    http_listener.rpc_path = calls.path
    return calls


async def listen(service: Service, reuse_port: bool = False) -> RunningServer:
    """Accept connections for `service`. With `reuse_port`, other processes may listen at the port as well."""
    options = service.options
    # A client that hangs up cancels its handler, and the handler frees what the request holds.
    runner = web.AppRunner(build_app(service), handler_cancellation=True, shutdown_timeout=CLOSING_GRACE_S)
    await runner.setup()
    http_listener = _http_listener(runner, service)
    new_connection = partial(HttpConnection, http_listener)
    uds: UnixSocket | None = None
    middleware_connections: FrontConnections | None = None
    try:
        if options.network.middleware:
            middleware_connections = await SERVERS["middleware"](new_connection, http_listener.most_body_bytes, service)
        factory = new_connection if middleware_connections is None else middleware_connections.new
        if options.network.uds:
            uds = _unix_socket(options)
        listeners = await _listen_on(factory, options, reuse_port, uds)
    except BaseException:
        if uds is not None:
            uds.listening.close()
            uds.remove()
        if middleware_connections is not None:
            await middleware_connections.close(0)
        await runner.cleanup()
        raise
    service.metrics_source.record_history(is_recording=True)
    if uds is not None:
        return RunningServer(service, runner, http_listener, listeners, "", 0, uds, middleware_connections)
    host, port = listeners[0].sockets[0].getsockname()[:2]
    return RunningServer(
        service, runner, http_listener, listeners, host, port, middleware_connections=middleware_connections
    )


async def _listen_on(
    factory: Callable[[], asyncio.Protocol], options: ServeOptions, reuse_port: bool, uds: "UnixSocket | None"
) -> list[asyncio.Server]:
    loop = asyncio.get_running_loop()
    tls = server_context(options.network.tls)
    if uds is not None:
        return [await loop.create_unix_server(factory, sock=uds.listening, ssl=tls, backlog=LISTEN_BACKLOG)]
    try:
        sockets = listening_sockets(options.network.host, options.network.port, LISTEN_BACKLOG, reuse_port)
    except OSError as error:
        raise StartError(
            f"cannot listen on {options.network.host}:{options.network.port}: {error.strerror or error}"
        ) from error
    return [await loop.create_server(factory, sock=each, ssl=tls, backlog=LISTEN_BACKLOG) for each in sockets]


def _unix_socket(options: ServeOptions) -> "UnixSocket":
    from mockserve.http.sockets import listen_at  # needs modules that only POSIX systems have

    try:
        return listen_at(options.network.uds, LISTEN_BACKLOG)
    except OSError as error:
        raise StartError(f"cannot listen on {options.network.uds}: {error.strerror or error}") from error


def _http_listener(runner: web.AppRunner, service: Service) -> HttpListener:
    server, options = runner.server, service.options
    assert server is not None  # set by `setup`
    keep_alive_s = service.environment.keep_alive_s
    new_library = partial(
        PlainErrorConnection,
        server,
        loop=asyncio.get_running_loop(),
        access_log=None,
        keepalive_timeout=keep_alive_s,
        max_line_size=options.network.h11_max_incomplete_event_size,
        max_field_size=options.network.h11_max_incomplete_event_size,
        max_headers=options.network.h11_max_header_count,
        # Bodies stay compressed, as in vLLM: a small body might decompress to any size.
        auto_decompress=False,
    )
    most_body_bytes = options.process.max_body_mb * 2**20
    limits = HttpLimits(
        most_head_bytes=min(options.network.h11_max_incomplete_event_size, LARGEST_HEAD_BYTES),
        most_fields=options.network.h11_max_header_count,
        most_body_bytes=min(most_body_bytes, LARGEST_BODY_BYTES),
    )
    return HttpListener(
        fast_routes(runner.app),
        new_library,
        service.delivery.wire,
        RequestReader(limits),
        keep_alive_s,
        options.network.request_receive_timeout,
        most_body_bytes,
    )
