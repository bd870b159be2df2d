"""What every route starts with."""

from typing import Any

from aiohttp import web

from mockserve.protocol.errors import wrong_media_type
from mockserve.protocol.fields import parse_json
from mockserve.service import Service, new_id

SERVICE = web.AppKey("service", Service)


async def read_body(request: web.Request) -> dict[str, Any]:
    """The JSON object a client sent. Raises ApiError when it did not send one, or not as JSON."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    return parse_json(await request.read())


def reply_id(request: web.Request, prefix: str, wanted: str | None) -> str:
    """The id of a reply: the request header's, else the body's, else a new one."""
    return f"{prefix}-{request.headers.get('X-Request-Id') or wanted or new_id()}"
