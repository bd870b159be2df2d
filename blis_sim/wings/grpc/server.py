"""A gRPC server: its port, its health service, its reflection, and its end."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blis_sim.installation import install_command
from blis_sim.options import OptionError, StartError
from mockserve.serving.service import Service

if TYPE_CHECKING:
    from grpc_health.v1.health import aio

ENGINE_SERVICE = "vllm.grpc.engine.VllmEngine"
CLOSING_GRACE_S = 0.25
"""Time limit for calls after replies have ended or been cut."""
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""vLLM's settings, except the length of a received message."""
MOST_BYTES_BESIDE_PROMPT, MOST_BYTES_PER_TOKEN = 1 << 20, 8
"""Bytes of a message without its prompt, and of each token of a prompt as an id or as text.

A message is parsed in one piece, during which no other request goes on.
"""


@dataclass(slots=True)
class RunningRpcServer:
    """A gRPC server that is listening."""

    service: Service
    host: str
    port: int
    _server: Any
    _health: "aio.HealthServicer"
    instance_ports: Mapping[int, int] = field(default_factory=dict)

    async def stop(self, at_once: asyncio.Event | None = None) -> None:
        """Report NOT_SERVING, then wait for open replies up to --shutdown-timeout or until `at_once`."""
        await self._health.enter_graceful_shutdown()
        await self.service.lifecycle.drain(at_once or asyncio.Event())
        await self._server.stop(CLOSING_GRACE_S)
        self.service.metrics_source.record_history(is_recording=False)
        self.service.close()
        await self.service.delivery.close_observers()


class OneLineForMalformed(logging.Filter):
    """Makes one line of what the library logs with a traceback when a message is no Protocol Buffer."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record, which is changed in place: always."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__name__ == "DecodeError":
            record.msg, record.args, record.exc_info = f"{record.getMessage()}: {error}", (), None
        return True


_LIBRARY_LOGGER = logging.getLogger("grpc._cython.cygrpc")
_ONE_LINE = OneLineForMalformed()


async def listen_for_calls(service: Service) -> RunningRpcServer:
    """Listen at the address of the options. Raises OptionError if a library is missing or the port is in use."""
    network = service.options.network
    host = f"[{network.host}]" if ":" in network.host else network.host
    server, health = await _new_server(service)
    try:
        port = server.add_insecure_port(f"{host}:{network.port}")
    except RuntimeError as error:
        raise StartError(f"cannot listen on {network.host} port {network.port}: {error}") from error
    await server.start()
    service.metrics_source.record_history(is_recording=True)
    return RunningRpcServer(service, network.host, port, server, health)


@dataclass(slots=True)
class RpcBehindHttp:
    """A gRPC server behind a unix socket in a folder of its own, for the HTTP/2 connections of an HTTP server."""

    folder: str
    _server: Any

    @property
    def path(self) -> str:
        """The unix socket."""
        return f"{self.folder}/grpc"

    async def stop(self) -> None:
        """End all calls, and remove the folder."""
        await self._server.stop(CLOSING_GRACE_S)
        shutil.rmtree(self.folder, ignore_errors=True)


async def listen_behind_http(service: Service) -> RpcBehindHttp:
    """Serve the calls that an HTTP server passes on. Raises OptionError if a library is missing."""
    server, _health = await _new_server(service)
    behind = RpcBehindHttp(tempfile.mkdtemp(prefix="blis-"), server)
    server.add_insecure_port(f"unix:{behind.path}")
    await server.start()
    return behind


async def _new_server(service: Service) -> tuple[Any, "aio.HealthServicer"]:
    """Return a gRPC server without a port, and its health service. Raises OptionError if a library is missing."""
    try:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc
        from grpc_health.v1.health import aio
        from grpc_reflection.v1alpha import reflection
        from smg_grpc_proto import vllm_engine_pb2_grpc
    except ImportError:
        raise OptionError(f"gRPC needs its libraries: {install_command('grpc')}") from None
    from blis_sim.wings.grpc.servicer import VllmEngine, read_metadata

    _LIBRARY_LOGGER.addFilter(_ONE_LINE)
    most_bytes = min(
        service.options.process.max_body_mb * 2**20,
        MOST_BYTES_BESIDE_PROMPT + MOST_BYTES_PER_TOKEN * service.model.planner.max_model_len,
    )
    metadata = await asyncio.to_thread(read_metadata, service.model.root)
    server = grpc.aio.server(options=[*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", most_bytes)])
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(VllmEngine(service, metadata), server)
    health = aio.HealthServicer()
    for name in ("", ENGINE_SERVICE):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = (ENGINE_SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return server, health
