"""A request that has ended in another process, as little of it as its row and the figures need."""

from array import array
from dataclasses import dataclass

from observe.answers.reply import Reply
from observe.client.exchange import Outcome
from observe.clock import Nanos
from observe.dispatch import Prepared, Sent
from observe.requests.schedule import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of a request. Instants are those of the process that is told."""

    request_id: int
    x_request_id: str
    streaming: bool
    due: Nanos
    sent: Nanos
    ended: Nanos
    status: str
    kind: str
    error_message: str
    finish_reason: str
    chunk_times: "array[int]"
    carries_tokens: bytes
    prompt_tokens: int | None
    completion_tokens: int | None

    def as_sent(self, planned: Planned) -> Sent:
        """The request as if it had been sent from here, without its bytes."""
        reply = Reply(streaming=self.streaming)
        reply.chunk_times = self.chunk_times.tolist()
        reply.carries_tokens = bytearray(self.carries_tokens)
        reply.prompt_tokens = self.prompt_tokens
        reply.completion_tokens = self.completion_tokens
        reply.finish_reason = self.finish_reason
        prepared = Prepared(
            request_id=self.request_id,
            planned=planned,
            x_request_id=self.x_request_id,
            request=b"",
            streaming=self.streaming,
        )
        outcome = Outcome(
            status=self.status,
            kind=self.kind,
            error_message=self.error_message,
            sent=self.sent,
            ended=self.ended,
            reply=reply,
        )
        return Sent(prepared=prepared, due=self.due, allowed=self.due, outcome=outcome)


def ended_of(sent: Sent, ahead_ns: int) -> Ended:
    """A request that was allowed when it was due, for a process whose counter is behind this one by so much."""

    def there(instant: Nanos) -> Nanos:
        return instant - ahead_ns if instant else 0

    outcome, reply = sent.outcome, sent.outcome.reply
    return Ended(
        request_id=sent.prepared.request_id,
        x_request_id=sent.prepared.x_request_id,
        streaming=sent.prepared.streaming,
        due=there(sent.due),
        sent=there(outcome.sent),
        ended=there(outcome.ended),
        status=outcome.status,
        kind=outcome.kind,
        error_message=outcome.error_message,
        finish_reason=reply.finish_reason,
        chunk_times=array("q", map(there, reply.chunk_times)),
        carries_tokens=bytes(reply.carries_tokens),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
    )
