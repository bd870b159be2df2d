"""Where tokens go: into a stream of events, or into one JSON object. Both count the same tokens the same way."""

import asyncio
from collections.abc import Callable, Sequence

from mockserve.frames import DONE, PLACEHOLDER, EventTemplate, event, event_template, http_chunk
from mockserve.generation import Generation
from mockserve.protocol.bodies import Bodies, Choice, Ending, Usage
from mockserve.protocol.errors import ApiError, internal_error
from mockserve.protocol.stream_options import Delivery


class ReplySet:
    """The choices of one HTTP reply: it is done when each of them is, or when one fails.

    `prompt_tokens` counts each prompt once, however many choices it has.
    """

    def __init__(self, generations: Sequence[Generation], prompt_tokens: int) -> None:
        self.generations = generations
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.completion_tokens = 0
        self.prompt_tokens = prompt_tokens
        self._num_open = len(generations)

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.completion_tokens)

    def choice_finished(self, num_tokens: int) -> bool:
        """Count one choice as finished; whether it was the last one."""
        self.completion_tokens += num_tokens
        self._num_open -= 1
        return self._num_open == 0

    def resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        """End the reply with an error; what other choices still bring is ignored."""
        if not self.done.done():
            self.done.set_exception(error)


class CollectedChoice:
    """A choice of a whole reply: keeps nothing but its end."""

    def __init__(self, replies: ReplySet, generation: Generation) -> None:
        self._replies = replies
        self._generation = generation
        self.choice: Choice | None = None

    def token(self, number: int) -> None:
        pass

    def finish(self, num_tokens: int) -> None:
        answer = self._generation.answer
        self.choice = Choice("".join(answer.texts[:num_tokens]), ending_at(self._generation, num_tokens))
        if self._replies.choice_finished(num_tokens):
            self._replies.resolve()

    def fail(self, message: str, is_refusal: bool) -> None:
        self._replies.fail(failure(message, is_refusal))

    @property
    def finish_reason(self) -> str:
        return self._generation.answer.ending.finish_reason


class EventStream:
    """Writes the events of one reply, each in a write of its own, and knows what comes before and after the choices.

    `write` takes bytes to a connection; `chunked` says whether each event must be wrapped as an HTTP chunk.
    """

    def __init__(
        self, replies: ReplySet, bodies: Bodies, delivery: Delivery, write: Callable[[bytes], None], chunked: bool
    ) -> None:
        self.replies = replies
        self.bodies = bodies
        self.delivery = delivery
        self._write = write
        self.chunked = chunked
        self._is_open = False

    def open(self) -> None:
        """What precedes the first token of any choice."""
        if self._is_open:
            return
        self._is_open = True
        for index, generation in enumerate(self.replies.generations):
            usage = Usage(generation.request.input_tokens, 0) if self.delivery.continuous_usage else None
            chunk = self.bodies.opening_chunk(index, usage)
            if chunk is not None:
                self.send(event(chunk))

    def send(self, data: bytes) -> None:
        """One event."""
        self.write(http_chunk(data) if self.chunked else data)

    def write(self, data: bytes) -> None:
        """Bytes as they go out. After the end nothing does, whatever the engine still brings."""
        if not self.replies.done.done():
            self._write(data)

    def choice_finished(self, num_tokens: int) -> None:
        """Count a choice; after the last one, end the stream."""
        if self.replies.choice_finished(num_tokens):
            if self.delivery.include_usage:
                self.send(event(self.bodies.usage_chunk(self.replies.usage)))
            self.send(DONE)
            self.replies.resolve()

    def fail(self, error: ApiError) -> None:
        """The status has been sent, so the error is an event."""
        if not self.replies.done.done():
            self.send(event(error.body()))
            self.send(DONE)
            self.replies.resolve()


class StreamedChoice:
    """A choice of a stream: one event per step with tokens, from a template unless it carries running counts."""

    def __init__(self, stream: EventStream, generation: Generation, index: int) -> None:
        self._stream = stream
        self._generation = generation
        self._texts = generation.answer.texts
        self._index = index
        self._num_sent = 0
        self._template: EventTemplate | None = None
        if not stream.delivery.continuous_usage:
            self._template = event_template(stream.bodies.text_chunk(index, PLACEHOLDER, None))

    def token(self, number: int) -> None:
        stream, num_sent = self._stream, self._num_sent
        if not num_sent:
            stream.open()
        self._num_sent = number
        text = self._texts[num_sent] if number == num_sent + 1 else "".join(self._texts[num_sent:number])
        template = self._template
        if template is None:
            stream.send(event(stream.bodies.text_chunk(self._index, text, self._usage(number))))
        elif stream.chunked:
            stream.write(template.fill_chunk(text))
        else:
            stream.write(template.fill(text))

    def finish(self, num_tokens: int) -> None:
        stream = self._stream
        stream.open()
        text = "".join(self._texts[self._num_sent : num_tokens])
        ending = ending_at(self._generation, num_tokens)
        usage = self._usage(num_tokens) if stream.delivery.continuous_usage else None
        stream.send(event(stream.bodies.ending_chunk(self._index, text, ending, usage)))
        stream.choice_finished(num_tokens)

    def fail(self, message: str, is_refusal: bool) -> None:
        self._stream.fail(failure(message, is_refusal))

    @property
    def finish_reason(self) -> str:
        return self._generation.answer.ending.finish_reason

    def _usage(self, num_tokens: int) -> Usage:
        return Usage(self._generation.request.input_tokens, num_tokens)


def ending_at(generation: Generation, num_tokens: int) -> Ending:
    """The planned ending, or `length` when the engine stopped earlier."""
    answer = generation.answer
    return answer.ending if num_tokens >= answer.num_tokens else Ending("length")


def failure(message: str, is_refusal: bool) -> ApiError:
    """A refusal is the request's fault; anything else is ours, and its details are not the client's business."""
    return ApiError(message) if is_refusal else internal_error()
