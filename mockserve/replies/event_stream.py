"""The events of a stream: written at once, held until the status is sent, or made piece by piece."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from mockserve.protocol.errors import ApiError
from mockserve.replies.frames import DONE, DONE_CHUNK, event, http_chunk, with_templates
from mockserve.replies.reply_set import ReplySet


class Sink(Protocol):
    """Receiver of the bytes of a stream."""

    def write(self, data: bytes) -> None:
        """Send one event."""
        ...

    def write_all(self, frames: list[bytes]) -> None:
        """Send one or more events."""
        ...

    def finish(self) -> None:
        """End the stream."""
        ...


class EventStream:
    """Writes the events of one reply, each in a separate write, and the events before and after the choices.

    `sink` sends events to a connection; `chunked`: each event must be wrapped as an HTTP chunk.
    """

    def __init__(self, replies: ReplySet, sink: Sink, chunked: bool) -> None:
        self.replies = replies
        self.job = replies.job
        self.bodies = replies.job.bodies
        self._sink = sink
        self.chunked = chunked
        self.usual_bodies = None if replies.job.templates is None else with_templates(replies.job.bodies)
        """Bodies for which event templates are shared between streams."""
        self._is_open = False

    def open(self) -> None:
        """Send the events before the first token of any choice."""
        if self._is_open:
            return
        self._is_open = True
        for each in self._openings():
            self.send(each)

    def _openings(self) -> Iterable[bytes]:
        num_choices = self.job.num_choices if self.job.num_announced is None else self.job.num_announced
        prompt = self.job.prompts[0]
        templates, usual = self.job.templates, self.usual_bodies
        if templates and usual and not prompt.shows_text and not self.job.delivery.continuous_usage:
            return templates.opening(usual, num_choices)
        usage = self.job.accounting.running_usage(prompt, 0, 0) if self.job.delivery.continuous_usage else None
        return map(event, self.bodies.opening_chunks(num_choices, prompt.prompt_output, usage))

    def send_if_any(self, make: Callable[[], dict[str, Any] | None], num_tokens: int) -> None:
        """Send the event that `make` returns, if any, for `num_tokens` tokens."""
        body = make()
        if body is not None:
            self.send(event(body))

    def send(self, data: bytes) -> None:
        """Send one event."""
        self.write(http_chunk(data) if self.chunked else data)

    def write(self, data: bytes) -> None:
        """Write the bytes of an event. Events after the end of the stream are dropped."""
        if not self.replies.done.done():
            self._sink.write(data)

    def write_all(self, events: list[bytes]) -> None:
        """Write several events of one step."""
        if not self.replies.done.done():
            self._sink.write_all(events)

    def choice_finished(self, num_tokens: int) -> None:
        """Count a choice; after the last one, end the stream."""
        if self.replies.choice_finished(num_tokens):
            if self.job.delivery.include_usage:
                usage, metrics = self.replies.usage(is_stream=True), self.replies.metrics(is_stream=True)
                self.send(event(self.bodies.usage_chunk(usage, metrics)))
            self.write(DONE_CHUNK if self.chunked else DONE)
            self._sink.finish()
            self.replies.resolve()

    def fail(self, error: ApiError) -> None:
        """Send the error as an event, since the status has been sent."""
        if not self.replies.done.done():
            self.send(self.job.errors.event(error))
            self.send(DONE)
            self._sink.finish()
            self.replies.resolve()


class _EventBuffer(list[bytes]):
    """Buffer of events."""

    def write(self, data: bytes) -> None:
        self.append(data)

    def write_all(self, frames: list[bytes]) -> None:
        self.extend(frames)

    def finish(self) -> None:
        """Do nothing: a stream that is held has not ended."""


class DeferredStream(EventStream):
    """A stream whose status has not been sent: its events are held until release, and an error has a status."""

    def __init__(self, replies: ReplySet, chunked: bool) -> None:
        self._kept = _EventBuffer()
        super().__init__(replies, self._kept, chunked)
        self._is_deferred = True

    def release(self, sink: Sink) -> None:
        """Release the stream after the status has been sent: held and further events go to `sink`."""
        self._is_deferred = False
        self._sink = sink
        if self._kept:
            sink.write_all(self._kept)

    def fail(self, error: ApiError) -> None:
        if self._is_deferred:
            self.replies.fail(error)
        else:
            super().fail(error)


RunInThread: TypeAlias = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function that makes bytes on another thread."""

TOKENS_AT_ONCE = 64
"""Number of tokens of an event from which making its details takes milliseconds."""
CHOICES_AT_ONCE = 256


class _DeferredBytes(NamedTuple):
    """Bytes that are made on another thread."""

    make: Callable[[], bytes]


class LongEventStream(EventStream):
    """Writes the events of one reply in order; long events are made on another thread."""

    def __init__(self, replies: ReplySet, sink: Sink, chunked: bool, run_in_thread: RunInThread) -> None:
        super().__init__(replies, sink, chunked)
        self._run_in_thread = run_in_thread
        self._waiting: deque[_DeferredBytes | Callable[[], None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        if self._is_open or self.job.num_choices <= CHOICES_AT_ONCE:
            super().open()
            return
        self._is_open = True
        self._make(_DeferredBytes(lambda: b"".join(map(self._framed, self._openings()))))

    def send_if_any(self, make: Callable[[], dict[str, Any] | None], num_tokens: int) -> None:
        if self._task is None and num_tokens <= TOKENS_AT_ONCE:
            super().send_if_any(make, num_tokens)
        else:
            self._make(_DeferredBytes(lambda: b"" if (body := make()) is None else self._framed(event(body))))

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

    def _make(self, made: _DeferredBytes) -> None:
        self._waiting.append(made)
        if self._task is None:
            self._task = task = asyncio.create_task(self._drain())
            self.replies.done.add_done_callback(lambda _: task.cancel())

    async def _drain(self) -> None:
        own = self._task
        while self._waiting:
            each = self._waiting.popleft()
            if isinstance(each, _DeferredBytes):
                data = await self._run_in_thread(each.make)
                if data:
                    EventStream.write(self, data)
            else:
                self._task = None
                each()
                self._task = own
        self._task = None
