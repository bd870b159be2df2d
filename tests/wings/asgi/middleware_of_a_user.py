"""Middleware as users of vLLM write it: classes of ASGI, and a function of Starlette."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

seen: list[str] = []


class Stamping:
    """Adds a header to every reply."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-stamp", scope["path"].encode()))
            await send(message)

        await self.app(scope, receive, stamped if scope["type"] == "http" else send)


class Renaming:
    """Leads a path of its own to chat completions, and sets the model in each body."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def renamed() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                message["body"] = message["body"].replace(b'"alias"', b'"m"')
            return message

        if scope["type"] == "http" and scope["path"] == "/my/chat":
            scope = {**scope, "path": "/v1/chat/completions"}
        await self.app(scope, renamed, send)


async def guarding(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse some requests, and fail at others, before they reach the server."""
    seen.append(request.url.path)
    if "x-refused" in request.headers:
        return PlainTextResponse("refused", status_code=418)
    if "x-broken" in request.headers:
        raise ValueError("broken")
    return await call_next(request)


unusable = 7
