"""When requests under way are given up: one timer for all that may take equally long, not one for each."""

import asyncio
from collections.abc import Callable
from time import perf_counter_ns

from observe.client.exchange import Exchange
from observe.clock import Nanos


class Deadlines:
    """Calls `passed` for each exchange that is still watched when its time is over, never early.

    Exchanges that may take equally long reach their deadlines in the order in which they began, so only the first of
    them is worth a timer, and another one only when that has fired.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[Exchange], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._watched: dict[float, dict[Exchange, Nanos]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def watch(self, exchange: Exchange) -> None:
        """Begin to count the time of this exchange."""
        timeout_s = exchange.timeout_s
        watched = self._watched.get(timeout_s)
        if watched is None:
            watched = self._watched[timeout_s] = {}
            self._timers[timeout_s] = self._loop.call_later(timeout_s, self._look, timeout_s)
        watched[exchange] = perf_counter_ns() + int(timeout_s * 1e9)

    def forget(self, exchange: Exchange) -> None:
        """It has ended in time, or otherwise."""
        watched = self._watched.get(exchange.timeout_s)
        if watched is not None:
            watched.pop(exchange, None)

    def close(self) -> None:
        """Watch nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._watched.clear()
        self._timers.clear()

    def _look(self, timeout_s: float) -> None:
        watched = self._watched[timeout_s]
        while watched:
            exchange, deadline = next(iter(watched.items()))
            left_ns = deadline - perf_counter_ns()
            if left_ns > 0:
                self._timers[timeout_s] = self._loop.call_later(left_ns / 1e9, self._look, timeout_s)
                return
            del watched[exchange]
            self._passed(exchange)
        # Each length of time that requests have of their own would stay for ever.
        del self._watched[timeout_s]
        del self._timers[timeout_s]
