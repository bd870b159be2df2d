"""Streams of typed events: one choice of a response or message."""

from collections.abc import Callable

from aiohttp import web

from blis_sim.engine.units import Micros
from mockserve.http.headers import UNKNOWN_CALLER, Caller, caller_of
from mockserve.protocol.bodies import Ending, Event, EventEncoder
from mockserve.protocol.errors import ApiError, paused
from mockserve.reply.frames import named_event
from mockserve.reply.reply import PlannedChoice, Reply, ReplyDelivery, ReplyJob
from mockserve.reply.stream import SSEWriter

SendEvent = Callable[[Event], None]


class StreamAbortedError(Exception):
    """The stream is cut without its end."""


class EncodedReply(Reply):
    """A reply with one choice, whose events are passed to `send`."""

    is_streamed = True

    def __init__(
        self,
        delivery: ReplyDelivery,
        job: ReplyJob,
        arrived_at: Micros,
        encoder: EventEncoder,
        send: SendEvent,
        caller: Caller = UNKNOWN_CALLER,
    ) -> None:
        super().__init__(delivery, job, arrived_at, caller)
        self._encoder = encoder
        self._send = send
        (self._prompt,) = job.prompts
        self._writer = job.new_writer(self._prompt, self._prompt.choices[0])
        self._is_open = False
        if encoder.starts_before_first_token:
            self._send_opening()

    def token(self, choice: PlannedChoice, number: int) -> None:
        first = choice.num_sent
        if first and number < first + self.job.stream_interval:
            return
        self._send_opening()
        piece = self._writer.piece(first, number)
        choice.num_sent = number
        if piece is not None:
            self._send_all(self._encoder.generated(piece))

    def fail(self, error: ApiError) -> None:
        self._send_all(self._encoder.failed(error))
        self.resolve()

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        self._send_opening()
        self._send_all(self._encoder.generated(self._writer.last_piece(choice.num_sent, num_tokens)))
        self.count_ended(num_tokens)
        usage, metrics = self.usage(is_stream=True), self.metrics(is_stream=False)
        self._send_all(self._encoder.ended(ending, usage, metrics))
        self.resolve()

    def _send_opening(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._send_all(self._encoder.opening(self.job.accounting.running_usage(self._prompt, 0, 0)))

    def _send_all(self, events: list[Event]) -> None:
        for each in events:
            self._send(each)

    async def run(self) -> None:
        """Send the events of the reply as tokens arrive. Cancellation frees the request in the engine.

        Raises StreamAbortedError for a reply that a paused server refuses, if the encoder has no event for it.
        """
        if not self.delivery.suspension.rejects_new:
            await super().run()
        elif self._encoder.aborts_stream_when_refused:
            raise StreamAbortedError
        else:
            self.fail(paused("InternalServerError"))


async def stream_to_client(
    request: web.Request, delivery: ReplyDelivery, job: ReplyJob, encoder: EventEncoder, arrived_at: Micros
) -> web.StreamResponse:
    """Stream a reply as the response to `request`."""
    with delivery.open_replies:
        async with SSEWriter(request) as writer:
            try:
                reply = EncodedReply(
                    delivery,
                    job,
                    arrived_at,
                    encoder,
                    lambda event: writer.send(named_event(event)),
                    caller_of(request),
                )
                await reply.run()
            except StreamAbortedError:
                writer.break_off()
        return writer.response
