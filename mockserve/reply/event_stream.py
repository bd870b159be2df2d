"""The events of a stream, in order. Large events of a long reply are made on another thread."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from mockserve.protocol.errors import ApiError
from mockserve.reply.frames import DONE, DONE_CHUNK, event, http_chunk, with_templates
from mockserve.reply.reply import Reply

TOKENS_AT_ONCE = 64
"""Number of tokens of an event from which making its details takes milliseconds."""
CHOICES_AT_ONCE = 256


class Sink(Protocol):
    """Receiver of the bytes of a stream."""

    chunked: bool
    """Whether each event must be wrapped as an HTTP chunk."""
    is_open: bool
    """Whether the status of the response is decided. Events that come before are kept."""

    def write(self, data: bytes) -> None:
        """Send one event."""
        ...

    def write_all(self, frames: list[bytes]) -> None:
        """Send one or more events."""
        ...

    def finish(self) -> None:
        """End the stream."""
        ...


MakeInThread: TypeAlias = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs a function that makes bytes on another thread."""


class _LargeEvent(NamedTuple):
    """An event that is made on another thread."""

    make: Callable[[], bytes]


class EventStream:
    """Writes the events of one reply to `sink`, each in a separate write, and the events around the choices.

    While a large event is made, later events wait for it.
    """

    def __init__(self, reply: Reply, sink: Sink, make_in_thread: MakeInThread) -> None:
        job = reply.job
        self.reply = reply
        self.job = job
        self.bodies = job.bodies
        self.chunked = sink.chunked
        self._sink = sink
        self._make_in_thread = make_in_thread
        self.usual_bodies = None if job.templates is None else with_templates(job.bodies)
        """Bodies for which event templates are shared between streams."""
        self._is_open = False
        self._waiting: deque[_LargeEvent | Callable[[], None]] | None = None
        """Large events, and calls to repeat once those before are made; None if no event is being made."""

    def open(self) -> None:
        """Send the events before the first token of any choice."""
        if self._is_open:
            return
        self._is_open = True
        if self.job.is_long and self.job.num_choices > CHOICES_AT_ONCE:
            self._make(lambda: b"".join(map(self._framed, self._openings())))
            return
        for each in self._openings():
            self.write(self._framed(each))

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

        def made() -> bytes:
            body = make()
            return b"" if body is None else self._framed(event(body))

        if self.job.is_long and (self._waiting is not None or num_tokens > TOKENS_AT_ONCE):
            self._make(made)
        elif data := made():
            self.write(data)

    def write(self, data: bytes) -> None:
        """Write the bytes of an event. Events after the end of the stream are dropped."""
        if self._waiting is not None:
            self._waiting.append(lambda: self.write(data))
        elif not self.reply.done.done():
            self._sink.write(data)

    def write_all(self, events: list[bytes]) -> None:
        """Write several events of one step."""
        if self._waiting is not None:
            self._waiting.append(lambda: self.write_all(events))
        elif not self.reply.done.done():
            self._sink.write_all(events)

    def choice_finished(self, num_tokens: int) -> None:
        """Count a choice; after the last one, end the stream."""
        if self._waiting is not None:
            self._waiting.append(lambda: self.choice_finished(num_tokens))
        elif self.reply.choice_finished(num_tokens):
            if self.job.delivery.include_usage:
                usage, metrics = self.reply.usage(is_stream=True), self.reply.metrics(is_stream=True)
                self.write(self._framed(event(self.bodies.usage_chunk(usage, metrics))))
            self.write(DONE_CHUNK if self.chunked else DONE)
            self._sink.finish()
            self.reply.resolve()

    def fail(self, error: ApiError) -> None:
        """End the stream with an error: the status of the response while it is undecided, else an event."""
        if self._waiting is not None:
            self._waiting.clear()
            self._waiting = None
        if not self._sink.is_open:
            self.reply.fail(error)
        elif not self.reply.done.done():
            self.write(self._framed(self.job.errors.event(error)))
            self.write(self._framed(DONE))
            self._sink.finish()
            self.reply.resolve()

    def _framed(self, data: bytes) -> bytes:
        return http_chunk(data) if self.chunked else data

    def _make(self, make: Callable[[], bytes]) -> None:
        """Write the event that `make` returns on a thread, after all events before it."""
        if self._waiting is not None:
            self._waiting.append(_LargeEvent(make))
            return
        self._waiting = deque((_LargeEvent(make),))
        task = asyncio.create_task(self._write_made(self._waiting))
        self.reply.done.add_done_callback(lambda _: task.cancel())

    async def _write_made(self, waiting: deque[_LargeEvent | Callable[[], None]]) -> None:
        while waiting:
            first = waiting.popleft()
            if isinstance(first, _LargeEvent):
                data = await self._make_in_thread(first.make)
                if data and not self.reply.done.done():
                    self._sink.write(data)
            else:
                self._waiting = None
                first()
                self._waiting = waiting
        self._waiting = None
