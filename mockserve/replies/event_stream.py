"""The events of one streamed reply, and what comes before and after those of its choices."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mockserve.protocol.errors import ApiError
from mockserve.replies.event_templates import with_templates
from mockserve.replies.frames import DONE, DONE_CHUNK, event, http_chunk
from mockserve.replies.reply_set import ReplySet


class Sink(Protocol):
    """Where the bytes of a stream go."""

    def write(self, data: bytes) -> None:
        """One event."""
        ...

    def write_all(self, frames: list[bytes]) -> None:
        """One event or more."""
        ...

    def finish(self) -> None:
        """No event follows."""
        ...


class EventStream:
    """Writes the events of one reply, each in a write of its own, and knows what comes before and after the choices.

    `sink` takes events to a connection; `chunked` says whether each of them must be wrapped as an HTTP chunk.
    """

    def __init__(self, replies: ReplySet, sink: Sink, chunked: bool) -> None:
        self.replies = replies
        self.job = replies.job
        self.bodies = replies.job.bodies
        self._sink = sink
        self.chunked = chunked
        self.usual_bodies = None if replies.job.templates is None else with_templates(replies.job.bodies)
        """Those whose events have templates that streams share."""
        self._is_open = False

    def open(self) -> None:
        """What precedes the first token of any choice."""
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
        return map(event, self.bodies.opening_chunks(num_choices, prompt.prompted, usage))

    def send_made(self, make: Callable[[], dict[str, Any] | None], num_tokens: int) -> None:
        """The event that `make` gives, if any, which tells of `num_tokens` tokens."""
        body = make()
        if body is not None:
            self.send(event(body))

    def send(self, data: bytes) -> None:
        """One event."""
        self.write(http_chunk(data) if self.chunked else data)

    def write(self, data: bytes) -> None:
        """One event as it goes out. After the end nothing does, whatever the engine still brings."""
        if not self.replies.done.done():
            self._sink.write(data)

    def write_all(self, events: list[bytes]) -> None:
        """Several likewise."""
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
        """The status has been sent, so the error is an event."""
        if not self.replies.done.done():
            self.send(self.job.errors.event(error))
            self.send(DONE)
            self._sink.finish()
            self.replies.resolve()
