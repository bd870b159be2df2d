"""Admission of requests: memory for bodies, limits on the queue, and the refusals of a server that is busy."""

import asyncio
from collections import deque
from dataclasses import dataclass

from mockserve.protocol.errors import ApiError, engine_dead
from mockserve.realtime.interface import Driver

MOST_RAW_BYTES = 256 << 20
MOST_VALUE_BYTES = 512 << 20


class Room:
    """Room for `most_bytes`, given in the order of asking. Whatever is larger than all of it comes alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, num_bytes: int) -> None:
        """Return when there is room."""
        if not self._waiting and self._fits(num_bytes):
            self._taken_bytes += num_bytes
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.give_back(num_bytes)
            raise

    def give_back(self, num_bytes: int) -> None:
        """Let others have the room."""
        self._taken_bytes -= num_bytes
        while self._waiting:
            wanted_bytes, given = self._waiting[0]
            if not given.cancelled():
                if not self._fits(wanted_bytes):
                    return
                self._taken_bytes += wanted_bytes
                given.set_result(None)
            self._waiting.popleft()

    def _fits(self, num_bytes: int) -> bool:
        return not self._taken_bytes or self._taken_bytes + num_bytes <= self._most_bytes


class BodyRoom:
    """Room for bodies as they came, and for what is made of them.

    A request that waits for the second kind has its room of the first. It never waits for the first kind afterwards, so
    that requests cannot wait for each other.
    """

    def __init__(self) -> None:
        self.raw = Room(MOST_RAW_BYTES)
        self.values = Room(MOST_VALUE_BYTES)


@dataclass(slots=True)
class RoomTaken:
    """What one request has of it."""

    room: BodyRoom
    raw_bytes: int = 0
    value_bytes: int = 0

    async def take_raw(self, num_bytes: int) -> None:
        """Return when there is room for a body."""
        await self.room.raw.take(num_bytes)
        self.raw_bytes += num_bytes

    def keep_raw(self, num_bytes: int) -> None:
        """Give back what was taken beyond this."""
        self.room.raw.give_back(self.raw_bytes - num_bytes)
        self.raw_bytes = num_bytes

    async def take_values(self, num_bytes: int) -> None:
        """Return when there is room for what a body becomes."""
        await self.room.values.take(num_bytes)
        self.value_bytes += num_bytes

    def leave(self) -> None:
        """Give all of it back."""
        self.room.raw.give_back(self.raw_bytes)
        self.room.values.give_back(self.value_bytes)
        self.raw_bytes = self.value_bytes = 0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """None is no limit."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_unfinished: int | None = None
    """Not vLLM's: those that run and those that may wait."""

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
            limit = self.limits.exceeded(driver.num_flights, num_new, driver.num_waiting_tokens)
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


def no_worker() -> ApiError:
    """The answer to a demand for which no worker process can be started."""
    message = "No process could be started for the request. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


def worker_killed() -> ApiError:
    """The answer to a demand whose worker processes were killed by something outside of the server."""
    message = "The process for the request was killed. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")
