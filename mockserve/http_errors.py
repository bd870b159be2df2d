"""What a client gets that does not speak HTTP: uvicorn's words, and its closed door."""

import logging
from http import HTTPStatus

from aiohttp import HttpVersion11, web

MESSAGE = "Invalid HTTP request received."

_logger = logging.getLogger(__name__)


class PlainErrors(web.RequestHandler):
    """Answers what cannot be parsed in one line; everything else is as in its parent."""

    __slots__ = ()

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
