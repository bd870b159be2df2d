"""Where tokens go: into a stream of events, or into one JSON object. Both count the same tokens the same way."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Protocol

from mockserve.choice_writer import ChoiceWriter
from mockserve.connections.caller import ANYBODY, Caller
from mockserve.content.answer import Kind
from mockserve.event_templates import with_templates
from mockserve.flight import NOBODY, Flight
from mockserve.frames import DONE, DONE_CHUNK, PLACEHOLDER, EventTemplate, event, event_template, http_chunk
from mockserve.generation import Generation
from mockserve.planned_prompt import PlannedPrompt
from mockserve.protocol.bodies import Choice, Ending, Piece, Usage
from mockserve.protocol.errors import ApiError, engine_dead
from mockserve.reply_job import AT_THE_END, ReplyJob


class ReplySet:
    """The choices of one HTTP reply: it is done when each of them is, or when one fails."""

    def __init__(self, job: ReplyJob, caller: Caller = ANYBODY) -> None:
        self.job = job
        self.caller = caller
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.completion_tokens = 0
        self._flights: list[Flight] = []
        self._num_open = job.num_choices

    def add_flight(self, flight: Flight) -> None:
        """One of the requests that the engine has for this reply, in the order of the choices."""
        self._flights.append(flight)

    def let_go(self) -> None:
        """The reply has ended. Its requests hold it no longer: in a circle they would wait for the collector."""
        for flight in self._flights:
            flight.reply = NOBODY

    def usage(self, is_stream: bool) -> Usage:
        """What all choices have cost. The first prompt's cached tokens stand for all in a stream, else the last's."""
        flight = (self._flights[0] if is_stream else self._flights[-1]) if self._flights else None
        return self.job.accounting.usage(self.job.prompts, self.completion_tokens, flight)

    def metrics(self, is_stream: bool) -> dict[str, Any] | None:
        """Latencies, if there is one request that they can be those of."""
        alone = self._flights[0] if len(self._flights) == 1 else None
        return self.job.accounting.metrics(alone, is_stream)

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

    def __init__(self, replies: ReplySet, writer: ChoiceWriter, generation: Generation) -> None:
        self._replies = replies
        self._writer = writer
        self._generation = generation
        self.choice: Choice | None = None

    def token(self, number: int) -> None:
        pass

    def tokens(self, first: int, last: int) -> None:
        pass

    def finish(self, num_tokens: int) -> None:
        self._end(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end(num_tokens, Ending("abort"))

    def _end(self, num_tokens: int, ending: Ending) -> None:
        choice = self._writer.choice(num_tokens, ending)
        self.choice = choice._replace(kv_transfer_params=self._replies.job.kv_transfer_params)
        if self._replies.choice_finished(num_tokens):
            self._replies.resolve()

    def fail(self, message: str, status: int) -> None:
        self._replies.fail(failure(message, status))

    @property
    def is_streamed(self) -> bool:
        return False

    @property
    def finish_reason(self) -> str:
        return engine_reason(self._generation)


class Sink(Protocol):
    """Where the bytes of a stream go."""

    def write(self, data: bytes) -> None:
        """One event."""
        ...

    def write_all(self, frames: list[bytes]) -> None:
        """One event or more."""
        ...

    def finish(self) -> None:
        """No event follows."""
        ...


class EventStream:
    """Writes the events of one reply, each in a write of its own, and knows what comes before and after the choices.

    `sink` takes events to a connection; `chunked` says whether each of them must be wrapped as an HTTP chunk.
    """

    def __init__(self, replies: ReplySet, sink: Sink, chunked: bool) -> None:
        self.replies = replies
        self.job = replies.job
        self.bodies = replies.job.bodies
        self._sink = sink
        self.chunked = chunked
        self.usual_bodies = None if replies.job.templates is None else with_templates(replies.job.bodies)
        """Those whose events have templates that streams share."""
        self._is_open = False

    def open(self) -> None:
        """What precedes the first token of any choice."""
        if self._is_open:
            return
        self._is_open = True
        prompt = self.job.prompts[0]
        templates, usual = self.job.templates, self.usual_bodies
        if templates and usual and not prompt.shows_text and not self.job.delivery.continuous_usage:
            for opening in templates.opening(usual, self.job.num_choices):
                self.send(opening)
            return
        usage = self.job.accounting.running_usage(prompt, 0, 0) if self.job.delivery.continuous_usage else None
        for chunk in self.bodies.opening_chunks(self.job.num_choices, prompt.prompted, usage):
            self.send(event(chunk))

    def send(self, data: bytes) -> None:
        """One event."""
        self.write(http_chunk(data) if self.chunked else data)

    def write(self, data: bytes) -> None:
        """One event as it goes out. After the end nothing does, whatever the engine still brings."""
        if not self.replies.done.done():
            self._sink.write(data)

    def write_all(self, events: list[bytes]) -> None:
        """Several likewise."""
        if not self.replies.done.done():
            self._sink.write_all(events)

    def choice_finished(self, num_tokens: int) -> None:
        """Count a choice; after the last one, end the stream."""
        if self.replies.choice_finished(num_tokens):
            if self.job.delivery.include_usage:
                usage, metrics = self.replies.usage(is_stream=True), self.replies.metrics(is_stream=True)
                self.send(event(self.bodies.usage_chunk(usage, metrics)))
            self.write(DONE_CHUNK if self.chunked else DONE)
            self._sink.finish()
            self.replies.resolve()

    def fail(self, error: ApiError) -> None:
        """The status has been sent, so the error is an event."""
        if not self.replies.done.done():
            self.send(event(error.body()))
            self.send(DONE)
            self._sink.finish()
            self.replies.resolve()


class StreamedChoice:
    """Choice `index` of a stream, number `number` of its prompt: an event per step that brought tokens, or per few.

    An event that brings text and nothing else is filled into a template.
    """

    def __init__(
        self, stream: EventStream, writer: ChoiceWriter, prompt: PlannedPrompt, number: int, index: int
    ) -> None:
        self._stream = stream
        self._writer = writer
        self._prompt = prompt
        self._number = number
        self._generation = prompt.generations[number]
        self._texts = self._generation.answer.texts
        self._index = index
        self._num_sent = 0
        self._interval = stream.job.stream_interval
        self._template: EventTemplate | None = None
        self._templates: dict[tuple[Kind, int], EventTemplate] = {}
        self._fills = not stream.job.delivery.continuous_usage and self._interval == 1
        if writer.sends_text_only and self._fills:
            self._template = self._text_template()

    def token(self, number: int) -> None:
        stream, num_sent = self._stream, self._num_sent
        if not num_sent:
            stream.open()
        template = self._template
        if template is None:
            self._token_of_a_kind(number)
            return
        self._num_sent = number
        text = self._texts[num_sent] if number == num_sent + 1 else "".join(self._texts[num_sent:number])
        stream.write(template.fill(text))

    def tokens(self, first: int, last: int) -> None:
        template = self._template
        if template is None or not self._num_sent:
            for number in range(first, last + 1):
                self.token(number)
            return
        self._num_sent = last
        self._stream.write_all(template.fill_all(self._texts[first - 1 : last]))

    def finish(self, num_tokens: int) -> None:
        self._end(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end(num_tokens, Ending("abort"))

    def _end(self, num_tokens: int, ending: Ending) -> None:
        stream = self._stream
        stream.open()
        template = self._end_template(ending)
        if template is not None:
            stream.write(template.fill("".join(self._texts[self._num_sent : num_tokens])))
            stream.choice_finished(num_tokens)
            return
        piece = self._writer.last_piece(self._num_sent, num_tokens)._replace(
            ending=ending,
            num_tokens=num_tokens,
            kv_transfer_params=stream.job.kv_transfer_params,
        )
        stream.send(event(stream.bodies.chunk(self._index, piece, self._usage(num_tokens))))
        stream.choice_finished(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self._stream.fail(failure(message, status))

    @property
    def is_streamed(self) -> bool:
        return True

    @property
    def finish_reason(self) -> str:
        return engine_reason(self._generation)

    def _token_of_a_kind(self, number: int) -> None:
        """An event filled into the template of its kind of text, if one token has come and brings no more than that."""
        stretch = self._writer.stretch(self._num_sent) if self._fills and number == self._num_sent + 1 else None
        if stretch is None:
            self._token_in_full(number)
            return
        self._num_sent = number
        key = (stretch.kind, stretch.call)
        template = self._templates.get(key)
        if template is None:
            blank = self._writer.stretch_piece(replace(stretch, text=PLACEHOLDER))
            template = self._new_template(blank)
            self._templates[key] = template
        self._stream.write(template.fill(stretch.text))

    def _token_in_full(self, number: int) -> None:
        """An event made anew, if it is time for one and there is anything to send."""
        if self._interval == AT_THE_END or (self._num_sent and number < self._num_sent + self._interval):
            return
        piece = self._writer.piece(self._num_sent, number)
        self._num_sent = number
        if piece is not None:
            self._stream.send(event(self._stream.bodies.chunk(self._index, piece, self._usage(number))))

    def _usage(self, num_tokens: int) -> Usage | None:
        if not self._stream.job.delivery.continuous_usage:
            return None
        return self._stream.job.accounting.running_usage(self._prompt, self._number, num_tokens)

    def _text_template(self) -> EventTemplate:
        """Of an event that brings text and nothing else."""
        stream, new_piece = self._stream, self._writer.text_piece
        templates, usual = stream.job.templates, stream.usual_bodies
        if templates is None or usual is None:
            return self._new_template(new_piece(PLACEHOLDER))
        return templates.token(usual, self._index, new_piece, stream.chunked)

    def _end_template(self, ending: Ending) -> EventTemplate | None:
        """Of the last event, if it brings text and the reason of the end."""
        job, usual = self._stream.job, self._stream.usual_bodies
        if self._template is None or usual is None or job.templates is None:
            return None
        if ending.stop_reason is not None or job.kv_transfer_params is not None:
            return None
        reason, new_piece = ending.finish_reason, self._writer.text_piece
        return job.templates.end(usual, self._index, new_piece, reason, self._stream.chunked)

    def _new_template(self, blank: Piece) -> EventTemplate:
        stream = self._stream
        return event_template(stream.bodies.chunk(self._index, blank, None), stream.chunked)


def ending_at(generation: Generation, num_tokens: int) -> Ending:
    """The planned ending, or `length` when the engine stopped earlier."""
    answer = generation.answer
    return answer.ending if num_tokens >= answer.num_tokens else Ending("length")


def engine_reason(generation: Generation) -> str:
    """Why a choice ended as the engine sees it, which knows nothing of tool calls."""
    reason = generation.answer.ending.finish_reason
    return "stop" if reason == "tool_calls" else reason


def failure(message: str, status: int) -> ApiError:
    """A refusal is the request's fault; anything else is a dead engine."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return engine_dead()
    return ApiError(message, status=status, kind=_KINDS.get(status, "BadRequestError"))


_KINDS: Mapping[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}
