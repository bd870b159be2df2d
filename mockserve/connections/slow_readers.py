"""Clients that read too slowly: what waits for them is bounded. Beyond the bound their connection is cut."""

import asyncio
import logging
from collections.abc import Callable

from mockserve.connections.arrival import StampedConnection

LOOK_EVERY_S = 0.1
"""How often a stream that has fallen behind is looked at."""
TELL_AFTER_S = 1.0
"""Cuts within this time share a line of the log."""

_logger = logging.getLogger(__name__)


class Backlog:
    """The bytes of one stream that the kernel does not take: allowed up to a limit, whatever the size of one event.

    Nothing is looked at before half of the limit waits, so a stream that is read costs nothing.
    """

    def __init__(
        self, transport: asyncio.Transport, connection: StampedConnection, limit_bytes: int, cut: Callable[[], None]
    ) -> None:
        connection.backlog = self
        self._transport = transport
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._allowed_bytes = limit_bytes
        self._cut = cut
        self._timer: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(limit_bytes // 2)

    def began(self) -> None:
        """More than half of the limit waits; one large event may be as much as that by itself."""
        waiting = self._transport.get_write_buffer_size()
        self._allowed_bytes = max(self._limit_bytes, waiting + self._limit_bytes // 2)
        self._look_later()

    def ended(self) -> None:
        """The client has caught up, or the stream has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self) -> None:
        """Watch no longer."""
        self._connection.backlog = None
        self.ended()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > self._allowed_bytes:
            self._transport.abort()
            self._cut()
        else:
            self._look_later()


class SlowReaders:
    """The limit of unsent bytes that each stream of a server has, and how many streams were cut for it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_cut = 0
        self._num_told = 0

    def watch(self, transport: asyncio.Transport) -> Backlog | None:
        """From now on cut the connection when its client leaves too much unread, until what is returned is left."""
        connection = transport.get_protocol()
        if not isinstance(connection, StampedConnection):
            return None
        return Backlog(transport, connection, self.limit_bytes, self._cut)

    def _cut(self) -> None:
        if self.num_cut == self._num_told:
            asyncio.get_running_loop().call_later(TELL_AFTER_S, self._tell)
        self.num_cut += 1

    def _tell(self) -> None:
        num_new, self._num_told = self.num_cut - self._num_told, self.num_cut
        limit = f"more than {self.limit_bytes // 1024:,} KiB unread"
        _logger.warning("streams cut because their clients left %s: %d", limit, num_new)
