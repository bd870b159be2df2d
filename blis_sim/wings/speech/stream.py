"""The stream of a transcription, chunk by chunk."""

from collections.abc import Callable
from typing import Any, Protocol

from blis_sim.wings.speech.bodies import SpeechChunks, SpeechRequest
from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.errors import ApiError
from mockserve.reply.plan import Generation, PlannedPrompt
from mockserve.reply.reply import Reply, failure
from mockserve.reply.typed_events import StepwiseChoice


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


class SpeechSegmentChoice(StepwiseChoice):
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

    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        self._add(num_tokens, ending)

    def _add(self, number: int, ending: Ending | None) -> None:
        text = "".join(self._generation.answer.texts[self._num_sent : number])
        if text and not self._has_text:
            self._has_text = True
            text = self._separator + text
        self._stream.add(self._number, text, ending, number - self._num_sent)
        self._num_sent = number
