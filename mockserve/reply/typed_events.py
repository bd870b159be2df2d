"""Streams of typed events: one choice of a response or message."""

from abc import abstractmethod
from collections.abc import Callable

from aiohttp import web

from blis_sim.engine.units import Micros
from mockserve.http.headers import caller_of
from mockserve.protocol.bodies import Ending, Event, EventEncoder
from mockserve.protocol.errors import ApiError, paused
from mockserve.reply.frames import named_event
from mockserve.reply.plan import ChoiceWriter, PlannedPrompt, ReplyJob
from mockserve.reply.reply import PlannedChoice, Reply, ReplyDelivery, failure
from mockserve.reply.stream import SSEWriter

SendEvent = Callable[[Event], None]


class StreamAbortedError(Exception):
    """The stream is cut without its end."""


class StepwiseChoice(PlannedChoice):
    """A streamed choice that takes its tokens one by one."""

    is_streamed = True

    @abstractmethod
    def token(self, number: int) -> None:
        """Send the tokens up to `number`, counted from 1."""

    def tokens(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.token(number)


class EncodedChoice(StepwiseChoice):
    """The only choice of a reply; its events are passed to `send`."""

    def __init__(self, reply: Reply, encoder: EventEncoder, send: SendEvent) -> None:
        self._prompt: PlannedPrompt = reply.job.prompts[0]
        super().__init__(self._prompt.generations[0])
        self._reply = reply
        self._encoder = encoder
        self._send = send
        self._writer: ChoiceWriter = reply.job.new_writer(self._prompt, self._generation)
        self._interval = reply.job.stream_interval
        self._num_sent = 0
        self._is_open = False
        if encoder.starts_before_first_token:
            self._send_opening()

    def token(self, number: int) -> None:
        if self._num_sent and number < self._num_sent + self._interval:
            return
        self._send_opening()
        piece = self._writer.piece(self._num_sent, number)
        self._num_sent = number
        if piece is not None:
            self._send_all(self._encoder.generated(piece))

    def fail(self, message: str, status: int) -> None:
        self.fail_with(failure(message, status))

    def fail_with(self, error: ApiError) -> None:
        """End the reply with an error."""
        self._send_all(self._encoder.failed(error))
        self._reply.resolve()

    def _send_opening(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._send_all(self._encoder.opening(self._reply.job.accounting.running_usage(self._prompt, 0, 0)))

    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        self._send_opening()
        self._send_all(self._encoder.generated(self._writer.last_piece(self._num_sent, num_tokens)))
        self._reply.choice_finished(num_tokens)
        usage, metrics = self._reply.usage(is_stream=True), self._reply.metrics(is_stream=False)
        self._send_all(self._encoder.ended(ending, usage, metrics))
        self._reply.resolve()

    def _send_all(self, events: list[Event]) -> None:
        for each in events:
            self._send(each)


async def stream_events(reply: Reply, encoder: EventEncoder, send: SendEvent) -> None:
    """Pass the events of a reply to `send` as tokens arrive. Cancellation frees the request in the engine.

    Raises BrokenOffError for a reply that a paused server refuses, if the encoder has no event for it.
    """
    choice = EncodedChoice(reply, encoder, send)
    if reply.delivery.suspension.rejects_new:
        if encoder.aborts_stream_when_refused:
            raise StreamAbortedError
        choice.fail_with(paused("InternalServerError"))
    else:
        await reply.run(lambda *_choice: choice)


async def stream_to_client(
    request: web.Request, delivery: ReplyDelivery, job: ReplyJob, encoder: EventEncoder, arrived_at: Micros
) -> web.StreamResponse:
    """Stream a reply as the response to `request`."""
    with delivery.open_replies:
        async with SSEWriter(request) as writer:
            reply = Reply(delivery, job, arrived_at, caller_of(request))
            try:
                await stream_events(reply, encoder, lambda event: writer.send(named_event(event)))
            except StreamAbortedError:
                writer.break_off()
        return writer.response
