"""A process of a Ray cluster that sends a share of a schedule and hands over the essentials of each ended request."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns

from blis_sim.options import BlisError
from observe.client import Client
from observe.clock import Nanos
from observe.connection import Outcome
from observe.dispatch import Dispatcher, PreparedRequest, SentRequest
from observe.errors import RunError
from observe.event_loop import allow_many_connections
from observe.requests import PlannedRequest
from observe.responses.reply import Reply
from observe.sending import ScheduleShard, connected_client, ready_dispatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """Outcome of a request. Instants are on the clock of the receiving process."""

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
    first_event: Nanos
    prompt_tokens: int | None
    completion_tokens: int | None

    def to_sent_request(self, planned: PlannedRequest) -> SentRequest:
        """The request as if it had been sent from here, without its bytes."""
        reply = Reply(streaming=self.streaming)
        reply.chunk_times = self.chunk_times.tolist()
        reply.carries_tokens = bytearray(self.carries_tokens)
        reply.first_event = self.first_event
        reply.prompt_tokens = self.prompt_tokens
        reply.completion_tokens = self.completion_tokens
        reply.finish_reason = self.finish_reason
        prepared = PreparedRequest(
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
        return SentRequest(prepared=prepared, due=self.due, allowed=self.due, outcome=outcome)


def remote_result_of(sent: SentRequest, clock_offset_ns: int) -> RemoteResult:
    """A request that was allowed when it was due, for a process whose counter is behind this one by so much."""

    def there(instant: Nanos) -> Nanos:
        return instant - clock_offset_ns if instant else 0

    outcome, reply = sent.outcome, sent.outcome.reply
    return RemoteResult(
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
        first_event=there(reply.first_event),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
    )


_BATCH_S = 0.5
_MAX_POLL_GAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Requests ended since the last report, and the progress of the share."""

    ended: Sequence[RemoteResult]
    num_sent: int
    num_in_flight: int
    is_over: bool


class RemoteSender:
    """Sender of a share of the requests; the run calls its methods in this order: `counter`, `prepare`, `begin`,
    `take` until it is over. The sender writes no files. A sender stops by itself when its run has died, because `take`
    is no longer called.
    """

    def __init__(self, share: ScheduleShard) -> None:
        self._share = share
        self._clock_offset_ns = 0
        self._client: Client | None = None
        self._dispatcher: Dispatcher | None = None
        self._sending: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self._ended: list[RemoteResult] = []
        self._polled_at: Nanos = 0

    async def counter(self) -> Nanos:
        """Return the reading of this machine's clock."""
        return perf_counter_ns()

    async def prepare(self, clock_offset_ns: int) -> str:
        """Connect and build requests; the clock here is ahead of that of the run by so much. Returns the reason if that
        fails."""
        self._clock_offset_ns = clock_offset_ns
        clock = self._share.clock
        try:
            allow_many_connections()
            self._client = await connected_client(
                self._share, replace(clock, counter_ns=clock.counter_ns + self._clock_offset_ns)
            )
        except (RunError, BlisError, OSError) as error:
            return str(error)
        self._dispatcher = ready_dispatcher(self._share, self._client, self._keep)
        return ""

    async def begin(self, origin: Nanos) -> None:
        """Send by a schedule that counts from this instant, of the clock of the run."""
        assert self._client is not None
        assert self._dispatcher is not None
        self._polled_at = perf_counter_ns()
        self._sending = asyncio.create_task(self._send(self._client, self._dispatcher, origin + self._clock_offset_ns))

    async def take(self) -> Batch:
        """Return a report after a short wait; at once when all requests have ended."""
        assert self._sending is not None
        assert self._dispatcher is not None
        self._polled_at = perf_counter_ns()
        await asyncio.wait([self._sending], timeout=_BATCH_S)
        is_over = self._sending.done()
        if is_over:
            self._sending.result()
        ended, self._ended = self._ended, []
        return Batch(
            ended=ended,
            num_sent=self._dispatcher.num_sent,
            num_in_flight=self._dispatcher.num_in_flight,
            is_over=is_over,
        )

    async def stop(self) -> None:
        """Send no more, and cut what is under way."""
        self._stop_requested.set()

    def _keep(self, sent: SentRequest) -> None:
        self._ended.append(remote_result_of(sent, self._clock_offset_ns))

    async def _send(self, client: Client, dispatcher: Dispatcher, origin: Nanos) -> None:
        tasks = [
            asyncio.create_task(dispatcher.run(origin)),
            asyncio.create_task(self._stop_requested.wait()),
            asyncio.create_task(self._stop_when_not_polled()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        dispatcher.stop()
        client.cancel_all()
        await client.close()
        if tasks[0].done() and not tasks[0].cancelled():
            tasks[0].result()

    async def _stop_when_not_polled(self) -> None:
        while perf_counter_ns() - self._polled_at < _MAX_POLL_GAP_S * 1e9:  # noqa: ASYNC110 - a report that is not fetched signals no event
            await asyncio.sleep(1)
