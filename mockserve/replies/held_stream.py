"""A stream that waits for its status: behind a router nothing is sent before it is known who answers."""

from mockserve.protocol.errors import ApiError
from mockserve.replies.event_stream import EventStream, Sink
from mockserve.replies.reply_set import ReplySet


class _Kept(list[bytes]):
    """Keeps events."""

    def write(self, data: bytes) -> None:
        self.append(data)

    def write_all(self, frames: list[bytes]) -> None:
        self.extend(frames)

    def finish(self) -> None:
        """The end is not kept: a stream ends where it is opened."""


class HeldStream(EventStream):
    """One whose status has not been sent: what it writes is kept until it is let go, and an error has a status."""

    def __init__(self, replies: ReplySet, chunked: bool) -> None:
        self._kept = _Kept()
        super().__init__(replies, self._kept, chunked)
        self._is_held = True

    def let_go(self, sink: Sink) -> None:
        """The status has been sent: from now on events go to `sink`."""
        self._is_held = False
        self._sink = sink
        if self._kept:
            sink.write_all(self._kept)

    def fail(self, error: ApiError) -> None:
        if self._is_held:
            self.replies.fail(error)
        else:
            super().fail(error)
