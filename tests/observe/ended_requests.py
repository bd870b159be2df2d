"""Requests that have ended, made up: for the arithmetic on them no server is needed."""

from collections.abc import Sequence

from observe.client import Outcome
from observe.requests import PlannedRequest, PreparedRequest, SentRequest
from observe.responses import Reply

MS = 1_000_000


def ended(
    sent_ms: float = 0,
    token_ms: Sequence[float] = (10, 20, 30),
    *,
    slo_class: str = "",
    kind: str = "ok",
    streaming: bool = True,
) -> SentRequest:
    """A request sent at an instant, whose tokens came so long after that."""
    at = 1_000 * MS + round(sent_ms * MS)
    reply = Reply(streaming=streaming)
    reply.chunk_times = [at + round(each * MS) for each in token_ms]
    reply.carries_tokens = bytearray([1] * len(token_ms))
    reply.completion_tokens = len(token_ms)
    status = kind if kind in ("ok", "timeout") else "error"
    last = reply.chunk_times[-1] if token_ms else at
    outcome = Outcome(status=status, kind=kind, error_message="", sent=at, ended=last, reply=reply)
    planned = PlannedRequest(at_us=0, input_tokens=5, output_tokens=len(token_ms), slo_class=slo_class)
    prepared = PreparedRequest(request_id=0, planned=planned, x_request_id="", request=b"", streaming=streaming)
    return SentRequest(prepared=prepared, due=at, allowed=at, outcome=outcome)
