"""One request and its answer, from the write of the first byte to the end, however it ends."""

from collections.abc import Callable
from dataclasses import dataclass

from observe.answers.reply import Reply
from observe.clock import Nanos
from observe.http.head import KnownHeads

CANCELLED = "cancelled"
"""The kind and the message of a request that the end of the run cut while it was under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a request ended.

    `status` is ok, error or timeout; `kind` names failures for counting (`http_500`, `timeout`, `stream`,
    `connection`, `malformed`, `cancelled`). `sent` is when it was tried if it could not be sent.
    """

    status: str
    kind: str
    error_message: str
    sent: Nanos
    ended: Nanos
    reply: Reply

    @property
    def first_chunk(self) -> Nanos:
        """When the first data event came, or the first byte of an answer that is no stream."""
        return self.reply.chunk_times[0] if self.reply.chunk_times else 0

    @property
    def last_chunk(self) -> Nanos:
        """When the last data event came, or the last byte of an answer that is no stream."""
        return self.reply.chunk_times[-1] if self.reply.chunk_times else 0

    @property
    def num_chunks(self) -> int:
        """Data events of a stream; 1 for an answer that came whole."""
        return len(self.reply.chunk_times) if self.reply.streaming else len(self.reply.chunk_times[:1])

    @property
    def output_tokens(self) -> int:
        """Tokens by the server's count, else the events that carried any."""
        counted = self.reply.completion_tokens
        return sum(self.reply.carries_tokens) if counted is None else counted

    @property
    def token_times(self) -> list[Nanos]:
        """The instants of the events that carried tokens, without the role and usage events."""
        return [at for at, carries in zip(self.reply.chunk_times, self.reply.carries_tokens, strict=False) if carries]


class Exchange:
    """A request under way. `settled` is called once, when it has an outcome.

    It may take `timeout_s`. With `heads` its head is looked up among those that other replies had.
    """

    __slots__ = ("finished", "num_sends", "outcome", "reply", "request", "sent", "settled", "timeout_s")

    def __init__(
        self,
        request: bytes,
        *,
        streaming: bool,
        finished: Callable[[Outcome], None],
        settled: Callable[["Exchange", Outcome], None],
        timeout_s: float,
        heads: KnownHeads | None = None,
    ) -> None:
        self.request = request
        self.reply = Reply(streaming=streaming, heads=heads)
        self.timeout_s = timeout_s
        self.finished = finished
        self.settled = settled
        self.sent: Nanos = 0
        self.num_sends = 0
        self.outcome: Outcome | None = None

    def answered(self, at: Nanos) -> None:
        """The whole answer has come."""
        reply = self.reply
        if reply.status_code != 200:
            code = reply.status_code
            self.end("error", f"http_{code}", f"HTTP {code}: {reply.text}", at)
        elif reply.problem:
            self.end("error", *_of_problem(reply), at)
        else:
            self.end("ok", "ok", "", at)

    def broken(self, reason: str, at: Nanos) -> None:
        """The connection is gone before the HTTP message was complete."""
        if self.reply.done and not self.reply.problem:
            self.end("ok", "ok", "", at)
        elif self.reply.chunk_times:
            self.end("error", "stream", f"streaming error: {reason}", at)
        else:
            self.end("error", "connection", f"HTTP error: {reason}", at)

    def end(self, status: str, kind: str, message: str, at: Nanos) -> None:
        """Settle the outcome; the first call counts."""
        if self.outcome is not None:
            return
        self.outcome = Outcome(
            status=status, kind=kind, error_message=message, sent=self.sent, ended=at, reply=self.reply
        )
        self.settled(self, self.outcome)


def _of_problem(reply: Reply) -> tuple[str, str]:
    if reply.streaming and reply.chunk_times:
        return "stream", f"streaming error: {reply.problem}"
    return "malformed", f"malformed answer: {reply.problem}"
