"""What a client gets that does not speak HTTP: uvicorn's words, and its closed door."""

from email.utils import formatdate
from http import HTTPStatus

from aiohttp import web

from mockserve.connections.aiohttp_internals import LibraryConnection
from mockserve.connections.network import SERVER_NAME

MESSAGE = "Invalid HTTP request received."


class PlainErrors(LibraryConnection):
    """A connection of the library that answers what cannot be parsed in one line."""

    __slots__ = ()

    def refusal(self) -> web.Response:
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
