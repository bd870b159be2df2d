"""A stream with events that take long to make: another thread makes those, and all that follows waits for them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from mockserve.protocol.errors import ApiError
from mockserve.replies.event_stream import EventStream, Sink
from mockserve.replies.frames import event, http_chunk
from mockserve.replies.reply_set import ReplySet

Aside: TypeAlias = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs what makes bytes on another thread."""

TOKENS_AT_ONCE = 64
"""An event of more tokens with their details takes milliseconds."""
CHOICES_AT_ONCE = 256


class _Made(NamedTuple):
    """Bytes that are made on another thread."""

    make: Callable[[], bytes]


class LongEventStream(EventStream):
    """Writes the events of one reply in their order, of which some are made elsewhere."""

    def __init__(self, replies: ReplySet, sink: Sink, chunked: bool, aside: Aside) -> None:
        super().__init__(replies, sink, chunked)
        self._aside = aside
        self._waiting: deque[_Made | Callable[[], None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        if self._is_open or self.job.num_choices <= CHOICES_AT_ONCE:
            super().open()
            return
        self._is_open = True
        self._make(_Made(lambda: b"".join(map(self._framed, self._openings()))))

    def send_made(self, make: Callable[[], dict[str, Any] | None], num_tokens: int) -> None:
        if self._task is None and num_tokens <= TOKENS_AT_ONCE:
            super().send_made(make, num_tokens)
        else:
            self._make(_Made(lambda: b"" if (body := make()) is None else self._framed(event(body))))

    def write(self, data: bytes) -> None:
        if self._task is None:
            super().write(data)
        else:
            self._waiting.append(lambda: EventStream.write(self, data))

    def write_all(self, events: list[bytes]) -> None:
        if self._task is None:
            super().write_all(events)
        else:
            self._waiting.append(lambda: EventStream.write_all(self, events))

    def choice_finished(self, num_tokens: int) -> None:
        if self._task is None:
            super().choice_finished(num_tokens)
        else:
            self._waiting.append(lambda: EventStream.choice_finished(self, num_tokens))

    def fail(self, error: ApiError) -> None:
        self._waiting.clear()
        self._task = None
        super().fail(error)

    def _framed(self, data: bytes) -> bytes:
        return http_chunk(data) if self.chunked else data

    def _make(self, made: _Made) -> None:
        self._waiting.append(made)
        if self._task is None:
            self._task = task = asyncio.create_task(self._drain())
            self.replies.done.add_done_callback(lambda _: task.cancel())

    async def _drain(self) -> None:
        own = self._task
        while self._waiting:
            each = self._waiting.popleft()
            if isinstance(each, _Made):
                data = await self._aside(each.make)
                if data:
                    EventStream.write(self, data)
            else:
                self._task = None
                each()
                self._task = own
        self._task = None
