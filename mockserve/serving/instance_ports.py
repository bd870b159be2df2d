"""A port for each instance, where it is a server of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from blis_sim.options import with_settings
from mockserve.serving.instances import InstanceControl
from mockserve.serving.service import Service


class Server(Protocol):
    """A server that is listening."""

    @property
    def port(self) -> int: ...

    async def stop(self, at_once: asyncio.Event | None = None) -> None:
        """Let open replies finish for a while, then end."""
        ...


class InstancePorts:
    """Opens and closes them, as `control` has instances. `first_port` is that of instance 0; 0 takes free ones."""

    def __init__(
        self, control: InstanceControl, first_port: int, listen: Callable[[Service], Awaitable[Server]]
    ) -> None:
        self._control = control
        self._first_port = first_port
        self._listen = listen
        self._servers: dict[int, Server] = {}
        control.listen = self.open
        control.hang_up = self.close

    async def open_all(self) -> None:
        """Listen for every instance. Raises OptionError for a port that cannot be listened on."""
        for number in list(self._control.services):
            await self.open(number)

    async def open(self, number: int) -> None:
        """Listen for one instance. Raises OptionError likewise."""
        service = self._control.services[number]
        port = self._first_port + number if self._first_port else 0
        service.options = with_settings(service.options, port=port, uds="")
        self._servers[number] = server = await self._listen(service)
        self._control.ports[number] = server.port

    async def close(self, number: int) -> None:
        """Listen no more for an instance, once its replies have ended."""
        server = self._servers.pop(number, None)
        if server is not None:
            await server.stop()
            self._control.ports.pop(number, None)

    async def close_all(self, at_once: asyncio.Event) -> None:
        """The same for all, without waiting for replies after `at_once`."""
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.stop(at_once) for server in servers.values()))
