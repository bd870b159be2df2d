"""Everything between the engines and the connections of replies."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

from mockserve.executor.executor import OffloadExecutor
from mockserve.http.clients import SlowReaders
from mockserve.http.headers import StreamHeads
from mockserve.realtime.driver import Driver, WriteCoalescer
from mockserve.realtime.suspension import ClusterSuspension, Suspension
from mockserve.reply.observers import RequestObserver


class OpenReplies:
    """Counts open replies: a `with` block is open for a reply, and for planning that takes several turns."""

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
        """Return when no reply is open, or after `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.number:  # a planned reply opens as soon as its planning ends
                    self._idle.clear()
                    await self._idle.wait()


@dataclass(slots=True)
class ReplyDelivery:
    """Everything between the engines and the connection of a reply."""

    driver: Driver
    suspension: Suspension | ClusterSuspension
    open_replies: OpenReplies
    executor: OffloadExecutor
    """Threads and worker processes for work that would block the event loop."""
    wire: WriteCoalescer
    heads: StreamHeads
    slow_readers: SlowReaders
    keep_alive_s: int
    """Seconds between comments in a stream that is silent; 0 for none."""
    cache_hit_threshold: float | None = None
    """Fraction of a prompt that the KV cache must hold for an answer, where requests may set one; else None."""
    observers: Sequence[RequestObserver] = ()
    """Writers of request logs and spans."""

    async def close_observers(self) -> None:
        """Flush observers, which may take until the timeout of an OpenTelemetry collector."""
        for observer in self.observers:
            await asyncio.to_thread(observer.close)


DELIVERY = web.AppKey("delivery", ReplyDelivery)
"""The key of an application's delivery of replies."""
