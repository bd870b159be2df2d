"""What a handler is, and how a JSON object becomes a response."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from aiohttp import web

from mockserve.protocol.json_text import reply_json

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(
    status: int,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    kind: type[web.Response] = web.Response,
) -> web.Response:
    """`body` as compact JSON."""
    return kind(status=status, body=reply_json(body), content_type="application/json", headers=headers)
