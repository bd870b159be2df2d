"""ASGI middleware of users around the server, behind the connections of uvicorn."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_sim.installation import install_command
from blis_sim.options import OptionError
from mockserve.serving.service import Service

if TYPE_CHECKING:
    from blis_sim.wings.asgi.connections import MiddlewareConnections


async def open_middleware(
    new_connection: Callable[[], asyncio.Protocol], most_body_bytes: int, service: Service
) -> "MiddlewareConnections":
    """Start the middleware of the options in front of connections. Raises OptionError."""
    try:
        from blis_sim.wings.asgi.connections import ConnectionLimits, MiddlewareConnections
    except ImportError as error:
        raise OptionError(f"--middleware needs {install_command('middleware')}: {error}") from error
    network = service.options.network
    limits = ConnectionLimits(
        most_body_bytes=most_body_bytes,
        most_head_bytes=network.h11_max_incomplete_event_size,
        receive_s=network.request_receive_timeout,
        keep_alive_s=int(service.environment.keep_alive_s),
    )
    connections = MiddlewareConnections(new_connection, network.middleware, limits)
    await connections.begin()
    return connections
