"""All uses of undocumented aiohttp internals; other modules use only the documented `aiohttp` and `aiohttp.web`.

This module was tested with the range of versions in `pyproject.toml`; `make test-newest-aiohttp` tests it with the
newest.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, cast

from aiohttp import EMPTY_PAYLOAD, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import RawRequestMessage, StreamWriter
from aiohttp.tcp_helpers import tcp_keepalive
from aiohttp.web_protocol import _ErrInfo
from multidict import CIMultiDictProxy
from yarl import URL

__all__ = [
    "AbstractStreamWriter",
    "AiohttpConnection",
    "BaseProtocol",
    "BufferedRequest",
    "UnreadableBodyError",
    "buffered_request",
    "fixed_match",
    "force_http_1_1",
    "forget_body",
    "has_begun_reply",
    "mark_reply_as_begun",
    "tcp_keepalive",
    "writing_through",
]

_logger = logging.getLogger(__name__)


class UnreadableBodyError(Exception):
    """Raised when the rest of a body is not HTTP, such as a chunk without a length."""


class BufferedRequest(web.Request):
    """A request that is completely received before its handler begins."""

    ATTRS = web.Request.ATTRS | frozenset({"whole_body"})
    whole_body = b""

    @property
    def content_length(self) -> int:
        return len(self.whole_body)

    @property
    def can_read_body(self) -> bool:
        return bool(self.whole_body)

    async def read(self) -> bytes:
        return self.whole_body


def buffered_request(
    method: str,
    path: str,
    headers: "CIMultiDictProxy[str]",
    closes: bool,
    body: bytes,
    url: URL,
    match_info: web.UrlMappingMatchInfo,
    connection: BaseProtocol,
    loop: asyncio.AbstractEventLoop,
    most_body_bytes: int,
) -> BufferedRequest:
    """Return a request received on `connection`, which has `ssl_context`, `peername` and `sockname`."""
    message = RawRequestMessage(method, path, HttpVersion11, headers, (), closes, None, False, False, url)
    writer = StreamWriter(connection, loop)
    task = cast(Any, None)  # no handler reads it
    request = BufferedRequest(
        message, EMPTY_PAYLOAD, cast(Any, connection), writer, task, loop, client_max_size=most_body_bytes
    )
    request._match_info = match_info
    request.whole_body = body
    return request


def fixed_match(route: web.AbstractRoute, app: web.Application) -> web.UrlMappingMatchInfo:
    """Return a match of a route without parameters that requests share, with the application that handles them."""
    found = web.UrlMappingMatchInfo({}, route)
    found.add_app(app)
    found.freeze()
    found._current_app = app
    return found


class AiohttpConnection(web.RequestHandler):
    """aiohttp's reader and writer of one connection; `refusal` answers unparsable bytes."""

    __slots__ = ("on_answered",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.on_answered: Callable[[], None] = _ignore
        """Called after a response was written."""

    @property
    def is_upgraded(self) -> bool:
        """Whether further bytes are of another protocol, such as that of WebSockets."""
        return self._upgraded

    @property
    def takes_bytes(self) -> bool:
        """Whether it has room for more bytes."""
        return not (self._reading_paused or self._buffer_paused)

    @abstractmethod
    def refusal(self) -> web.Response:
        """Return the answer to bytes that are not HTTP."""

    def attach(self, transport: asyncio.Transport, is_paused: bool) -> None:
        """Start using `transport`, whose buffer is full if `is_paused`."""
        if is_paused:
            self.pause_writing()
        self.connection_made(transport)

    def detach(self) -> None:
        """Stop without closing the transport."""
        self.transport = None
        self.connection_lost(None)

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        self.on_answered()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_broken = bool(self._messages) and isinstance(self._messages[-1][0], _ErrInfo)
        body = None if self._current_request is None else self._current_request.content
        if not is_broken or body is None or body.is_eof():
            return
        # aiohttp only queues the error, and the handler would wait forever for the rest of its body.
        body.set_exception(UnreadableBodyError())
        self._lingering_time = 0.0  # nothing is left to read after the answer

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            _logger.debug("%s hung up before its reply was written", request.remote)
            self.force_close()
            return web.Response(status=status)  # no connection is left to write to
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or has_begun_reply(request):
            return super().handle_error(request, status, exc, message)
        _logger.debug("invalid request from %s: %s", request.remote, message)
        request._version = HttpVersion11  # unparsable bytes have no version and would count as HTTP/1.0
        return self.refusal()


def force_http_1_1(request: web.BaseRequest) -> None:
    """Make the reply to `request` HTTP/1.1 for any version of the request."""
    request._cache["version"] = HttpVersion11


def forget_body(request: web.BaseRequest) -> None:
    """Free the memory of a body that has been read."""
    request._read_bytes = b""


def has_begun_reply(request: web.BaseRequest) -> bool:
    """Return whether aiohttp has written bytes of a reply."""
    return request.writer.output_size > 0


def mark_reply_as_begun(request: web.BaseRequest) -> None:
    """Prevent aiohttp from sending an error after bytes that were written without it."""
    request.writer.output_size += 1


@contextmanager
def writing_through(request: web.BaseRequest, transport: asyncio.Transport) -> Iterator[None]:
    """Write the reply to `request` to `transport` within the block, instead of the transport of aiohttp's protocol."""
    protocol, own = request.protocol, request.transport
    protocol.transport = transport
    try:
        yield
    finally:
        if protocol.transport is transport:
            protocol.transport = own


def _ignore() -> None:
    """No-op default."""
