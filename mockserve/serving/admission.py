"""Memory for the bodies of requests, and the refusals of a server without workers."""

import asyncio
from collections import deque
from dataclasses import dataclass

from mockserve.protocol.errors import ApiError

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
        """Release so many bytes of the room, for waiting bodies."""
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

    A request that waits for the second kind has its room of the first, and never waits for the first kind afterwards,
    so that requests cannot wait for each other.
    """

    def __init__(self) -> None:
        self.raw = Room(MOST_RAW_BYTES)
        self.values = Room(MOST_VALUE_BYTES)


@dataclass(slots=True)
class RoomTaken:
    """The share of one request in `BodyRoom`."""

    room: BodyRoom
    raw_bytes: int = 0
    value_bytes: int = 0

    async def take_raw(self, num_bytes: int) -> None:
        """Return when there is room for a body."""
        await self.room.raw.take(num_bytes)
        self.raw_bytes += num_bytes

    def keep_raw(self, num_bytes: int) -> None:
        """Release what was taken beyond this."""
        self.room.raw.give_back(self.raw_bytes - num_bytes)
        self.raw_bytes = num_bytes

    async def take_values(self, num_bytes: int) -> None:
        """Return when there is room for what a body becomes."""
        await self.room.values.take(num_bytes)
        self.value_bytes += num_bytes

    def leave(self) -> None:
        """Release all of it."""
        self.room.raw.give_back(self.raw_bytes)
        self.room.values.give_back(self.value_bytes)
        self.raw_bytes = self.value_bytes = 0


def no_worker() -> ApiError:
    """The answer to a demand for which no worker process can be started."""
    message = "No process could be started for the request. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")


def worker_killed() -> ApiError:
    """The error for a demand whose worker processes were killed by something outside of the server."""
    message = "The process for the request was killed. Please try again later."
    return ApiError(message, status=503, kind="Service Unavailable")
