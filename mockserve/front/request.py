"""A usual request in the form that handlers take."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from aiohttp import EMPTY_PAYLOAD, HttpVersion11, web
from aiohttp.http import RawRequestMessage, StreamWriter

from mockserve.front.routes import FrontRoute
from mockserve.front.usual import UsualRequest

if TYPE_CHECKING:
    from mockserve.front.connection import FrontConnection


class WholeRequest(web.Request):
    """A request that had all come when it was begun with."""

    ATTRS = web.Request.ATTRS | frozenset({"route_app", "whole_body"})
    whole_body = b""
    route_app: web.Application | None = None

    @property
    def app(self) -> web.Application:
        return self.route_app or super().app

    @property
    def content_length(self) -> int:
        return len(self.whole_body)

    @property
    def can_read_body(self) -> bool:
        return bool(self.whole_body)

    async def read(self) -> bytes:
        return self.whole_body


def whole_request(
    usual: UsualRequest,
    route: FrontRoute,
    connection: "FrontConnection",
    loop: asyncio.AbstractEventLoop,
    most_body_bytes: int,
) -> WholeRequest:
    """`usual` as it came on `connection`, which has all that the library wants of a protocol of its own."""
    head = usual.head
    message = RawRequestMessage(
        head.method, head.path, HttpVersion11, head.headers, (), head.closes, None, False, False, route.url
    )
    writer = StreamWriter(connection, loop)
    task = cast(Any, None)  # nobody asks for it
    request = WholeRequest(
        message, EMPTY_PAYLOAD, cast(Any, connection), writer, task, loop, client_max_size=most_body_bytes
    )
    request._match_info = route.match_info
    request.route_app = route.app
    request.whole_body = usual.body
    return request
