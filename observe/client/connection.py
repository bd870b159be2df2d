"""One TCP connection that carries one exchange at a time, and the moment at which bytes are stamped."""

import asyncio
from collections.abc import Callable
from time import perf_counter_ns
from typing import cast

from observe.client.exchange import Exchange
from observe.clock import Clock
from observe.errors import ResponseError
from observe.http.request import stamped


class Connection(asyncio.Protocol):
    """Writes a request and feeds what comes back to its reply, stamped on arrival and before any parsing.

    `freed` is called when the connection can carry the next exchange, `lost` when it is gone, with the exchange
    that has not heard a byte although it went out on a connection that had worked before: the server closed an
    idle connection just then, and the request may be sent again.
    """

    def __init__(
        self,
        clock: Clock,
        freed: Callable[["Connection"], None],
        lost: Callable[["Connection", Exchange | None], None],
    ) -> None:
        self._clock = clock
        self._freed = freed
        self._lost = lost
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._num_exchanges = 0
        self._opened = perf_counter_ns()

    @property
    def usable(self) -> bool:
        """Whether a request can be written now."""
        return self._exchange is None and self._transport is not None and not self._transport.is_closing()

    @property
    def age_ns(self) -> int:
        """How long ago it was opened."""
        return perf_counter_ns() - self._opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls this when the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        # With room for nothing, a write goes to the socket at once and not at the end of the loop's round.
        self._transport.set_write_buffer_limits(high=0)

    @property
    def _all_written(self) -> bool:
        """False where a server has answered before it had read the whole request."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def begin(self, exchange: Exchange) -> None:
        """Send this request; the instant of sending is taken right before the bytes are written."""
        assert self._transport is not None
        self._exchange = exchange
        self._num_exchanges += 1
        exchange.num_sends += 1
        exchange.sent = sent = perf_counter_ns()
        self._transport.write(stamped(exchange.request, self._clock.epoch_us(sent)))

    def data_received(self, data: bytes) -> None:
        """Asyncio calls this with bytes as they come."""
        at = perf_counter_ns()
        exchange = self._exchange
        if exchange is None:
            self.abort()
            return
        try:
            complete = exchange.reply.feed(data, at)
        except ResponseError as error:
            self.abort()
            exchange.end("error", "malformed", f"malformed answer: {error}", at)
            return
        if complete:
            self._exchange = None
            if exchange.reply.keep_alive and self._all_written:
                self._freed(self)
            else:
                self.abort()
            exchange.answered(at)

    def connection_lost(self, error: Exception | None) -> None:
        """Asyncio calls this once, when the connection is closed by either side."""
        at = perf_counter_ns()
        exchange, self._exchange = self._exchange, None
        if exchange is None or exchange.outcome is not None:
            self._lost(self, None)
        elif not exchange.reply.first_byte and self._num_exchanges > 1 and exchange.num_sends == 1:
            self._lost(self, exchange)
        else:
            self._lost(self, None)
            if exchange.reply.end(at):
                exchange.answered(at)
            else:
                exchange.broken(_reason(error), at)

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()


def _reason(error: Exception | None) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) if error else "connection closed before the answer was complete"
