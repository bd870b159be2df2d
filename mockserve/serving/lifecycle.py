"""The life of a server: readiness, limits on its queue, open replies, its end on a signal or a broken engine."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from mockserve.protocol.errors import ApiError, engine_dead
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
    death_reported: asyncio.Event = field(default_factory=asyncio.Event)
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


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of the queue; None is no limit."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_unfinished: int | None = None
    """Most requests that run or wait, a limit that vLLM does not have."""

    @property
    def limits_anything(self) -> bool:
        return not self.max_num_queued_reqs is self.max_num_queued_tokens is self.max_unfinished is None

    def exceeded(self, num_unfinished: int, num_new: int, num_waiting_tokens: int) -> str | None:
        """The name of the limit that `num_new` more requests would exceed."""
        if self.max_num_queued_reqs is not None and num_unfinished + num_new > self.max_num_queued_reqs:
            return "max_num_queued_reqs"
        if self.max_num_queued_tokens is not None and num_waiting_tokens >= self.max_num_queued_tokens:
            return "max_num_queued_tokens"
        if self.max_unfinished is not None and num_unfinished + num_new > self.max_unfinished:
            return "max_unfinished"
        return None


@dataclass(slots=True)
class RequestQueue:
    """The engine's queue as new requests meet it: its limits, and rejections counted by limit."""

    driver: Driver
    limits: QueueLimits
    rejections: dict[str, int]

    def check(self, num_new: int) -> None:
        """Raise ApiError when the engine is dead or `num_new` more requests exceed a limit."""
        driver = self.driver
        if driver.failure is not None:
            raise engine_dead()
        if self.limits.limits_anything:
            limit = self.limits.exceeded(driver.num_unfinished_requests, num_new, driver.num_waiting_tokens)
            if limit is not None:
                if limit in self.rejections:
                    self.rejections[limit] += 1
                raise too_busy(limit)


def too_busy(limit: str) -> ApiError:
    """The answer to a request over a limit."""
    if limit == "max_unfinished":
        return ApiError("Too many requests are waiting, retry later.", status=429, kind="RateLimitError")
    reason = {
        "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests.",
        "max_num_queued_tokens": "The engine has reached its prefill token backlog limit.",
    }[limit]
    message = f"{reason} Please try again later or on a different instance."
    return ApiError(message, status=503, kind="Service Unavailable")


async def engine_death(lives: Sequence[Lifecycle]) -> BaseException:
    """Return the error of the first broken engine, when the server must end because of it."""
    deaths = [asyncio.ensure_future(each.death_reported.wait()) for each in lives]
    try:
        while True:
            failures = [each.driver.failure for each in lives]
            found = next((failure for failure in failures if failure is not None), None)
            if found is not None:
                return found
            await asyncio.wait(deaths, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in deaths:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
