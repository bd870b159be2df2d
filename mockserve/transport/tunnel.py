"""A client's connection passed on to a server behind a unix socket, byte by byte."""

import asyncio
import logging
from typing import cast

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n"
"""First line of every HTTP/2 connection, which gRPC's are."""

_logger = logging.getLogger(__name__)


class Tunnel(asyncio.Protocol):
    """The far end of a client's connection: what the client sends goes to the unix socket, and what comes goes back.

    Neither side is read while the other takes no more bytes.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._client: asyncio.Transport | None = None
        self._far: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """Bytes of the client from before the far side was open."""

    # --- called for the client's connection ---

    def attach(self, client: asyncio.Transport) -> None:
        """Open the far side, and read nothing of the client until it is open."""
        self._client = client
        client.pause_reading()
        self._opening = asyncio.get_running_loop().create_task(self._open())

    def from_client(self, data: bytes) -> None:
        """Pass on bytes of the client."""
        if self._far is None:
            self._early.append(data)
        else:
            self._far.write(data)

    def client_lost(self) -> None:
        """Close the far side: the client has gone."""
        self._client = None
        if self._far is not None:
            self._far.close()

    def client_is_slow(self, is_slow: bool) -> None:
        """Stop or go on reading the far side."""
        if self._far is not None and not self._far.is_closing():
            (self._far.pause_reading if is_slow else self._far.resume_reading)()

    async def _open(self) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, self._path)
        except OSError as error:
            _logger.error("the gRPC server cannot be reached: %s", error.strerror or error)
            if self._client is not None:
                self._client.close()

    # --- called for the far side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._far = far = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio
        if self._client is None:
            far.close()
            return
        far.write(b"".join(self._early))
        self._early.clear()
        self._client.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._client is not None:
            self._client.write(data)

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.pause_reading()

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._client is not None:
            self._client.close()
