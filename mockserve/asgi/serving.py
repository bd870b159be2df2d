"""uvicorn's connections in front of the server, where a user's middleware is around it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate

from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from blis_sim.options import OptionError
from mockserve.asgi.bridge import Bridge
from mockserve.asgi.loading import wrapped

_DATE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request and of a connection."""

    most_body_bytes: int
    most_head_bytes: int
    receive_s: float
    keep_alive_s: int


class OutsideConnections:
    """Connections of clients: uvicorn reads requests and writes replies, as in vLLM."""

    def __init__(self, new_connection: Callable[[], asyncio.Protocol], paths: Sequence[str], limits: Limits) -> None:
        """`new_connection` makes a connection of the server inside. Raises OptionError for middleware that is none."""
        bridge = Bridge(new_connection, limits.most_body_bytes, limits.receive_s)
        self._config = Config(
            wrapped(bridge, paths),
            interface="asgi3",
            lifespan="on",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=limits.keep_alive_s,
            h11_max_incomplete_event_size=limits.most_head_bytes,
        )
        self._config.load()
        self._lifespan = LifespanOn(self._config)
        self._state = ServerState()
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Start the lifespan of the middleware. Raises OptionError if that fails."""
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise OptionError("--middleware: the application has refused to start")
        self._write_date()

    def new(self) -> asyncio.Protocol:
        """A connection with a client."""
        make: Callable[..., asyncio.Protocol] = self._config.http_protocol_class
        return make(config=self._config, server_state=self._state, app_state=self._lifespan.state)

    async def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for replies that are under way, then cut them."""
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_s)
        for connection in tuple(self._state.connections):
            connection.transport.close()
        for task in tuple(self._state.tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await self._lifespan.shutdown()

    def _write_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode()), (b"server", b"uvicorn")]
        self._timer = asyncio.get_running_loop().call_later(_DATE_EVERY_S, self._write_date)
