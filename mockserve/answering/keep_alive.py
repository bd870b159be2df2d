"""Comments in a stream that has nothing to say, for proxies that close what is quiet."""

import asyncio
from types import TracebackType
from typing import Self

from mockserve.answering.outlet import Outlet

COMMENT = b": keep-alive\n\n"
"""As vLLM has it; readers of events ignore it."""


class KeepAlive:
    """While this is open, a comment leaves `outlet` whenever nothing has for `interval_s` seconds; 0 for never."""

    def __init__(self, outlet: Outlet, interval_s: int) -> None:
        self._outlet = outlet
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0

    def heard(self) -> None:
        """Something leaves."""
        self._last_s = asyncio.get_running_loop().time()

    def __enter__(self) -> Self:
        if self._interval_s:
            self._outlet.keep_alive = self
            self.heard()
            self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._outlet.keep_alive = None

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._last_s + self._interval_s, self._look)

    def _look(self) -> None:
        if asyncio.get_running_loop().time() >= self._last_s + self._interval_s:
            self._outlet.send(COMMENT)
        self._wait()
