"""The end of a server: it says that it is not ready, takes no new work, and lets open replies finish for a while."""

import asyncio
from contextlib import suppress

from aiohttp import web

from mockserve.protocol.errors import ApiError
from mockserve.serving.service import Service

HEALTH_PATH = "/ping"
"""May be posted to a server that stops, and says that it is not ready."""


def refuse_while_stopping(request: web.Request, service: Service) -> None:
    """New work is for other instances by now. Raises ApiError."""
    if service.is_stopping and request.method == "POST" and not request.path.endswith(HEALTH_PATH):
        raise ApiError("The server is shutting down.", status=503, kind="ServiceUnavailableError")


async def drain(service: Service, at_once: asyncio.Event) -> None:
    """Return when nothing is being answered, when the time for that is up, or when told to stop at once."""
    service.is_stopping = True
    idle = asyncio.ensure_future(service.answering.wait_until_none(service.options.shutdown_timeout))
    hurry = asyncio.ensure_future(at_once.wait())
    await asyncio.wait((idle, hurry), return_when=asyncio.FIRST_COMPLETED)
    for task in (idle, hurry):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
