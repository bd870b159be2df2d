"""The life of a server: open replies, readiness, and its end on a signal or after an engine has broken."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from mockserve.protocol.errors import ApiError
from mockserve.realtime.cluster import ClusterDriver, InstanceDriver
from mockserve.realtime.interface import Driver

HEALTH_PATH = "/ping"
"""POST requests to this path are answered by a server that stops: it is not ready."""

LOOK_EVERY_S = 5.0
"""vLLM's server checks its engine this often. A reply with a status of 500 ends it at once."""


class OpenReplies:
    """Each reply is counted within a `with` block, and so is the planning of one that takes several turns."""

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, *_error: object) -> None:
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def wait_until_none(self, timeout_s: float) -> None:
        """Return when there is none any more, or when the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.number:  # a reply that was planned begins as soon as its plan ends
                    self._idle.clear()
                    await self._idle.wait()


@dataclass(slots=True)
class Lifecycle:
    """The state of one server between its start and its end."""

    driver: Driver
    shutdown_timeout_s: float
    """The longest wait for open replies after a signal."""
    open_replies: OpenReplies = field(default_factory=OpenReplies)
    """Replies to the model routes."""
    is_stopping: bool = False
    """Set by a signal: open replies may finish, new requests are refused."""
    death_told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the status of a reply has reported the death of the engine."""

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        driver = self.driver
        is_closed = isinstance(driver, ClusterDriver | InstanceDriver) and not driver.takes_requests
        return not self.is_stopping and driver.failure is None and not is_closed

    def refuse_while_stopping(self, request: web.Request) -> None:
        """Raise ApiError for new work while the server stops."""
        if self.is_stopping and request.method == "POST" and not request.path.endswith(HEALTH_PATH):
            raise ApiError("The server is shutting down.", status=503, kind="ServiceUnavailableError")

    async def drain(self, at_once: asyncio.Event) -> None:
        """Return when no reply is open, when the shutdown timeout has passed, or when `at_once` is set."""
        self.is_stopping = True
        idle = asyncio.ensure_future(self.open_replies.wait_until_none(self.shutdown_timeout_s))
        hurry = asyncio.ensure_future(at_once.wait())
        await asyncio.wait((idle, hurry), return_when=asyncio.FIRST_COMPLETED)
        for task in (idle, hurry):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def engine_death(lives: Sequence[Lifecycle]) -> BaseException:
    """Return the error of the first broken engine, when the server must end because of it."""
    told = [asyncio.ensure_future(each.death_told.wait()) for each in lives]
    try:
        while True:
            failures = [each.driver.failure for each in lives]
            found = next((failure for failure in failures if failure is not None), None)
            if found is not None:
                return found
            await asyncio.wait(told, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in told:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
