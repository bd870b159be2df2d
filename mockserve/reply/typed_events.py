"""Streams of typed events: one choice of a response or message, or a transcription chunk by chunk."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from blis_sim.engine.units import Micros
from mockserve.http.clients import caller_of
from mockserve.protocol.bodies import Ending, Event, EventEncoder, Usage
from mockserve.protocol.errors import ApiError, paused
from mockserve.protocol.speech import SpeechChunks, SpeechRequest
from mockserve.reply.choices import PlannedChoice, failure
from mockserve.reply.delivery import ReplyDelivery
from mockserve.reply.frames import named_event
from mockserve.reply.plan import ChoiceWriter, Generation, PlannedPrompt, ReplyJob
from mockserve.reply.reply import Reply
from mockserve.reply.sse_writer import SSEWriter

SendEvent = Callable[[Event], None]


class StreamAbortedError(Exception):
    """The stream is cut without its end."""


class _StepwiseChoice(PlannedChoice):
    """A streamed choice that takes its tokens one by one."""

    is_streamed = True

    @abstractmethod
    def token(self, number: int) -> None:
        """Send the tokens up to `number`, counted from 1."""

    def tokens(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.token(number)


class EncodedChoice(_StepwiseChoice):
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
            self._open()

    def token(self, number: int) -> None:
        if self._num_sent and number < self._num_sent + self._interval:
            return
        self._open()
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

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._send_all(self._encoder.opening(self._reply.job.accounting.running_usage(self._prompt, 0, 0)))

    def _end(self, num_tokens: int, ending: Ending) -> None:
        self._open()
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


class SpeechStream:
    """The events of one stream. Text of a later segment is held back until all earlier segments have ended."""

    def __init__(
        self,
        reply: Reply,
        api_request: SpeechRequest,
        chunks: SpeechChunks,
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._reply = reply
        self._job = reply.job
        self._asked = api_request
        self.chunks = chunks
        self._send = send
        self._current = 0
        self._waiting: list[list[tuple[str, Ending | None, int]]] = [[] for _ in reply.job.prompts]
        self._num_tokens = 0

    def receiver(
        self, index: int, _prompt: PlannedPrompt, _number: int, generation: Generation
    ) -> "SpeechSegmentChoice":
        """Return the receiver of the tokens of segment `index`."""
        return SpeechSegmentChoice(self, index, generation, self._asked.separator)

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        """Add new text of segment `number`."""
        self._waiting[number].append((text, ending, num_new))
        while self._current < len(self._waiting) and self._waiting[self._current]:
            self._send_text(*self._waiting[self._current].pop(0))

    def fail(self, error: ApiError) -> None:
        """Send the error as an event, since the status has been sent."""
        self._send(error.body())
        self._reply.resolve()

    def _send_text(self, text: str, ending: Ending | None, num_new: int) -> None:
        self._num_tokens += num_new
        usage = Usage(len(self._job.prompts[self._current].token_ids), self._num_tokens)
        if text or ending is not None:
            self._send(self.chunks.text(text, ending, usage if self._asked.continuous_usage else None))
        if ending is None:
            return
        self._current += 1
        if self._current == len(self._waiting):
            if self._asked.include_usage:
                self._send(self.chunks.usage(usage))
            self._reply.resolve()


class Listener(Protocol):
    """Receiver of the text of segments."""

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        """Add new text of segment `number`."""
        ...

    def fail(self, error: ApiError) -> None:
        """End all segments with an error."""
        ...


class SpeechSegmentChoice(_StepwiseChoice):
    """One segment of a stream, with `separator` between its text and the text of the preceding segment."""

    def __init__(self, stream: Listener, number: int, generation: Generation, separator: str = "") -> None:
        super().__init__(generation)
        self._stream = stream
        self._separator = separator
        self._number = number
        self._num_sent = 0
        self._has_text = number == 0

    def token(self, number: int) -> None:
        self._add(number, None)

    def fail(self, message: str, status: int) -> None:
        self._stream.fail(failure(message, status))

    def _end(self, num_tokens: int, ending: Ending) -> None:
        self._add(num_tokens, ending)

    def _add(self, number: int, ending: Ending | None) -> None:
        text = "".join(self._generation.answer.texts[self._num_sent : number])
        if text and not self._has_text:
            self._has_text = True
            text = self._separator + text
        self._stream.add(self._number, text, ending, number - self._num_sent)
        self._num_sent = number
