"""The end of a server: on a signal, when open replies may finish, or a moment after an engine has broken."""

import asyncio
from collections.abc import Sequence
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
    """Return when nothing is being answered, when the time for that is up, or when `at_once` is set."""
    service.is_stopping = True
    idle = asyncio.ensure_future(service.answering.wait_until_none(service.options.network.shutdown_timeout))
    hurry = asyncio.ensure_future(at_once.wait())
    await asyncio.wait((idle, hurry), return_when=asyncio.FIRST_COMPLETED)
    for task in (idle, hurry):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


LOOK_EVERY_S = 5.0
"""How often vLLM's server looks after its engine. A reply with a status of 500 ends it at once."""


async def engine_death(services: Sequence[Service]) -> BaseException:
    """Return when a server must end because of a broken engine, with what it broke with."""
    told = [asyncio.ensure_future(service.death_told.wait()) for service in services]
    try:
        while True:
            failures = [service.driver.failure for service in services]
            found = next((failure for failure in failures if failure is not None), None)
            if found is not None:
                return found
            await asyncio.wait(told, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in told:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
