"""Lines of the rows of a recording, made with little work where rows have most of their columns in common."""

from typing import Any

from blis_sim.options.memo import Memo
from observe.clock import Clock
from observe.dispatch import Sent
from traces import TraceRow, TraceWriter

_NUMBERS = (
    "request_id",
    "input_tokens",
    "output_tokens",
    "server_input_tokens",
    "arrival_time_us",
    "send_time_us",
    "first_chunk_time_us",
    "last_chunk_time_us",
    "num_chunks",
)
_MOST_FORMS = 256


def row_of(sent: Sent, clock: Clock) -> TraceRow:
    """The row of one request. Send and chunk times are Unix microseconds, the arrival counts from the start."""
    prepared, planned, outcome = sent.prepared, sent.prepared.planned, sent.outcome
    return TraceRow(
        request_id=prepared.request_id,
        client_id=planned.client_id,
        tenant_id=planned.tenant_id,
        slo_class=planned.slo_class,
        session_id=planned.session_id,
        round_index=planned.round_index,
        prefix_group=planned.prefix_group,
        prefix_length=planned.prefix_tokens,
        streaming=prepared.streaming,
        model=planned.model,
        think_time_us=planned.think_time_us,
        context_tokens=planned.context_tokens,
        input_tokens=_input_tokens(sent),
        output_tokens=outcome.output_tokens,
        server_input_tokens=outcome.reply.prompt_tokens or 0,
        arrival_time_us=planned.at_us,
        send_time_us=clock.epoch_us(outcome.sent),
        first_chunk_time_us=clock.epoch_us(outcome.first_chunk),
        last_chunk_time_us=clock.epoch_us(outcome.last_chunk),
        num_chunks=outcome.num_chunks,
        status=outcome.status,
        error_message=outcome.error_message,
        finish_reason=outcome.reply.finish_reason,
        x_request_id=prepared.x_request_id,
    )


class RowLines:
    """The line of each row for one writer.

    Requests of one kind, answered in the same way, share a form: a line with places for the numbers and the id.
    Rounds of sessions and requests that failed have too much of their own for that.
    """

    def __init__(self, writer: TraceWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._ahead_ns = clock.epoch_ns - clock.counter_ns
        self._forms = Memo[tuple[Any, ...], str](_MOST_FORMS)

    def line(self, sent: Sent) -> str:
        """What the writer would write for the row of this request."""
        planned, reply = sent.prepared.planned, sent.outcome.reply
        if planned.session_id or sent.outcome.status != "ok":
            return self._writer.line(row_of(sent, self._clock))
        key = (
            sent.prepared.streaming,
            reply.finish_reason,
            planned.client_id,
            planned.tenant_id,
            planned.slo_class,
            planned.prefix_group,
            planned.prefix_tokens,
            planned.model,
            planned.round_index,
            planned.think_time_us,
            planned.context_tokens,
        )
        form = self._forms.get(key)
        if form is None:
            form = self._writer.form(row_of(sent, self._clock), _NUMBERS, ("x_request_id",))
            self._forms.keep(key, form)
        return form % self._values(sent)

    def _values(self, sent: Sent) -> tuple[Any, ...]:
        prepared, outcome, ahead_ns = sent.prepared, sent.outcome, self._ahead_ns
        reply = outcome.reply
        first, last = outcome.first_chunk, outcome.last_chunk
        return (
            prepared.request_id,
            _input_tokens(sent),
            outcome.output_tokens,
            reply.prompt_tokens or 0,
            prepared.planned.at_us,
            (ahead_ns + outcome.sent) // 1000 if outcome.sent else 0,
            (ahead_ns + first) // 1000 if first else 0,
            (ahead_ns + last) // 1000 if last else 0,
            outcome.num_chunks,
            prepared.x_request_id,
        )


def _input_tokens(sent: Sent) -> int:
    # Of a given prompt the length is an estimate until the server has counted.
    planned = sent.prepared.planned
    return (planned.prompt and sent.outcome.reply.prompt_tokens) or planned.input_tokens
