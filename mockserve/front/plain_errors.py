"""What a client gets that does not speak HTTP: uvicorn's words, and its closed door."""

import logging
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import _ErrInfo

from mockserve.connections.network import SERVER_NAME

MESSAGE = "Invalid HTTP request received."

_logger = logging.getLogger(__name__)


class UnreadableBodyError(Exception):
    """The rest of a body is not HTTP, such as a chunk without a length."""


class PlainErrors(web.RequestHandler):
    """Answers what cannot be parsed in one line; everything else is as in its parent."""

    __slots__ = ("tell_answered",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tell_answered: Callable[[], None] = _ignore
        """Who wants to know when a response has been written."""

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        self.tell_answered()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_broken = bool(self._messages) and isinstance(self._messages[-1][0], _ErrInfo)
        body = None if self._current_request is None else self._current_request.content
        if not is_broken or body is None or body.is_eof():
            return
        # The library only queues the error, and the handler would wait forever for the rest of its body.
        body.set_exception(UnreadableBodyError())
        self._lingering_time = 0.0  # after the answer there is nothing left to read

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
            return web.Response(status=status)  # which has no connection to be written to
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        _logger.debug("invalid request from %s: %s", request.remote, message)
        request._version = HttpVersion11  # what cannot be parsed has none, and would be taken for HTTP/1.0
        return refusal()


def refusal() -> web.Response:
    """Return the answer to bytes that are not HTTP, after which the connection is closed."""
    headers = {
        "date": formatdate(usegmt=True),
        "server": SERVER_NAME,
        "content-length": str(len(MESSAGE)),
        "content-type": "text/plain; charset=utf-8",
        "connection": "close",
    }
    response = web.Response(status=HTTPStatus.BAD_REQUEST, body=MESSAGE.encode(), headers=headers)
    response.force_close()
    return response


def _ignore() -> None:
    """Nobody wants to know."""
