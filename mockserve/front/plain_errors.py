"""What a client gets that does not speak HTTP: uvicorn's words, and its closed door."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11, web

MESSAGE = "Invalid HTTP request received."

_logger = logging.getLogger(__name__)


class PlainErrors(web.RequestHandler):
    """Answers what cannot be parsed in one line; everything else is as in its parent."""

    __slots__ = ("tell_answered",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.tell_answered: Callable[[], None] = _ignore
        """Who wants to know when a response has been written."""

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        self.tell_answered()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        _logger.debug("invalid request from %s: %s", request.remote, message)
        request._version = HttpVersion11  # what cannot be parsed has none, and would be taken for HTTP/1.0
        response = web.Response(
            status=HTTPStatus.BAD_REQUEST, text=MESSAGE, headers={"Connection": "close", "Server": "uvicorn"}
        )
        response.force_close()
        return response


def _ignore() -> None:
    """Nobody wants to know."""
