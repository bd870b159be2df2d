"""What precedes the events of a stream: status and headers, put together once a second instead of once a request."""

import time
from email.utils import formatdate

from aiohttp import HttpVersion11, hdrs, web
from multidict import CIMultiDict

from mockserve.connections.aiohttp_internals import AbstractStreamWriter
from mockserve.connections.headers import write_as_uvicorn
from mockserve.connections.network import SERVER_NAME, Network

EVENT_STREAM = "text/event-stream; charset=utf-8"


class StreamHeads:
    """The head of the streams of one server, byte for byte as the library writes it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.response = EventResponse()
        """What handlers return for a stream with such a head."""
        self._second = -1
        self._head = b""

    def head_for(self, request: web.Request) -> bytes | None:
        """The head of a stream that answers `request`; None where it is not the same for all."""
        is_usual = request.version == HttpVersion11 and request.keep_alive and hdrs.ORIGIN not in request.headers
        if not is_usual or self._network.adds_request_ids:
            return None
        second = int(time.time())
        if second != self._second:
            self._second, self._head = second, self._written(second)
        return self._head

    def _written(self, second: int) -> bytes:
        network = self._network
        headers: CIMultiDict[str] = CIMultiDict(
            {
                "Content-Type": EVENT_STREAM,
                "Transfer-Encoding": "chunked",
                "Date": formatdate(second, usegmt=True),
                "Server": SERVER_NAME,
                **network.cors.reply_headers(None),
            }
        )
        headers.update(network.further_headers)
        write_as_uvicorn(headers)
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode()


class EventResponse(web.StreamResponse):
    """A response whose bytes all go past the library: there is nothing that it would have to write."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return
