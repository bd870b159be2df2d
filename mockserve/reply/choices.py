"""Choices of a reply that receive tokens: whole, sent at the end, or streamed, event by event."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple

from mockserve.generation.answer import Kind
from mockserve.protocol.bodies import Choice, Ending, Piece, Usage
from mockserve.protocol.errors import ApiError, engine_dead
from mockserve.reply.event_stream import EventStream
from mockserve.reply.frames import PLACEHOLDER, EventTemplate, event_template
from mockserve.reply.plan import AT_THE_END, Generation, PlannedPrompt
from mockserve.reply.reply import Reply


def ending_at(generation: Generation, num_tokens: int, is_stream: bool = False) -> Ending:
    """Return the planned ending, or `length` if the engine stopped earlier."""
    answer = generation.answer
    if num_tokens < answer.num_tokens:
        return Ending("length")
    return answer.ending if answer.streamed_ending is None or not is_stream else answer.streamed_ending


def failure(message: str, status: int) -> ApiError:
    """Return the error of a refused request with `status`, else the error of a dead engine."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return engine_dead()
    return ApiError(message, status=status, kind=_KINDS.get(status, "BadRequestError"))


_KINDS: Mapping[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}


class PlannedChoice(ABC):
    """A choice whose ending is planned: `_end_choice` gets the planned ending or the ending of an abort."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @property
    def finish_reason(self) -> str:
        reason = self._generation.answer.ending.finish_reason
        return "stop" if reason == "tool_calls" else reason  # the engine does not know of calls

    def finish(self, num_tokens: int) -> None:
        self._end_choice(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end_choice(num_tokens, Ending("abort"))

    @abstractmethod
    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        """End the choice after `num_tokens` tokens."""


class _End(NamedTuple):
    num_tokens: int
    ending: Ending


class EndedChoices:
    """The choices of one reply by their index, written when they are read. Choices read by index are kept."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._ends: list[_End | None] = [None] * reply.num_open
        self._kept: dict[int, Choice] = {}

    def receiver(self, index: int, _prompt: PlannedPrompt, _number: int, generation: Generation) -> "EndedChoice":
        """Return the receiver of the tokens of choice `index`."""
        return EndedChoice(self._reply, self._ends, index, generation)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Choice:
        place = range(len(self))[index]
        if place not in self._kept:
            self._kept[place] = self._written(place)
        return self._kept[place]

    def __iter__(self) -> Iterator[Choice]:
        for index in range(len(self)):
            yield self._kept.get(index) or self._written(index)

    def _written(self, index: int) -> Choice:
        job, end = self._reply.job, self._ends[index]
        assert end is not None  # a reply of which a choice has failed is not written
        place, number = divmod(index, len(job.prompts[0].generations))
        prompt = job.prompts[place]
        writer = job.new_writer(prompt, prompt.generations[number])
        return writer.choice(end.num_tokens, end.ending)._replace(kv_transfer_params=job.kv_transfer_params)


class EndedChoice(PlannedChoice):
    """The receiver of a choice of a reply that is no stream: stores how the choice ended."""

    is_streamed = False

    def __init__(self, reply: Reply, ends: list[_End | None], index: int, generation: Generation) -> None:
        super().__init__(generation)
        self._reply = reply
        self._ends = ends
        self._index = index

    def token(self, number: int) -> None:
        """Do nothing: no event is sent before the end."""

    def tokens(self, first: int, last: int) -> None:
        """Do nothing: no event is sent before the end."""

    def fail(self, message: str, status: int) -> None:
        self._reply.fail(failure(message, status))

    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        self._ends[self._index] = _End(num_tokens, ending)
        if self._reply.choice_finished(num_tokens):
            self._reply.resolve()


class StreamedChoice(PlannedChoice):
    """Choice `index` of a stream, number `number` of its prompt.

    An event is sent for each step with new tokens, or for every few tokens. An event with only text is made from a
    template.
    """

    is_streamed = True

    def __init__(
        self, stream: EventStream, index: int, prompt: PlannedPrompt, number: int, generation: Generation
    ) -> None:
        super().__init__(generation)
        self._stream = stream
        self._writer = stream.job.new_writer(prompt, generation)
        self._prompt = prompt
        self._number = number
        self._texts = self._generation.answer.texts
        self._index = index
        self._num_sent = 0
        self._interval = stream.job.stream_interval
        self._template: EventTemplate | None = None
        self._templates: dict[tuple[Kind, int], EventTemplate] = {}
        self._fills = not stream.job.delivery.continuous_usage and self._interval == 1
        if self._writer.sends_text_only and self._fills:
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
        self._end_choice(num_tokens, ending_at(self._generation, num_tokens, is_stream=True))

    def _end_choice(self, num_tokens: int, ending: Ending) -> None:
        stream = self._stream
        stream.open()
        template = self._end_template(ending) if num_tokens else None
        if template is not None:
            stream.write(template.fill("".join(self._texts[self._num_sent : num_tokens])))
            stream.choice_finished(num_tokens)
            return
        first = self._num_sent

        def last_event() -> dict[str, Any]:
            piece = self._writer.last_piece(first, num_tokens)._replace(
                ending=ending,
                num_tokens=num_tokens,
                kv_transfer_params=stream.job.kv_transfer_params,
            )
            return stream.bodies.chunk(self._index, piece, self._usage(num_tokens))

        stream.send_if_any(last_event, self._num_reported(first, num_tokens))
        stream.choice_finished(num_tokens)

    def fail(self, message: str, status: int) -> None:
        self._stream.fail(failure(message, status))

    def _token_of_a_kind(self, number: int) -> None:
        """Make the event from the template for its kind of text, if a single token has only text."""
        single_delta = (
            self._writer.single_delta(self._num_sent) if self._fills and number == self._num_sent + 1 else None
        )
        if single_delta is None:
            self._token_in_full(number)
            return
        self._num_sent = number
        key = (single_delta.kind, single_delta.call)
        template = self._templates.get(key)
        if template is None:
            blank = self._writer.single_delta_piece(replace(single_delta, text=PLACEHOLDER))
            template = self._new_template(blank)
            self._templates[key] = template
        self._stream.write(template.fill(single_delta.text))

    def _token_in_full(self, number: int) -> None:
        """Make an event without a template, if one is due and has content."""
        if self._interval == AT_THE_END or (self._num_sent and number < self._num_sent + self._interval):
            return
        first = self._num_sent
        self._num_sent = number

        def next_event() -> dict[str, Any] | None:
            piece = self._writer.piece(first, number)
            return None if piece is None else self._stream.bodies.chunk(self._index, piece, self._usage(number))

        self._stream.send_if_any(next_event, self._num_reported(first, number))

    def _num_reported(self, first: int, last: int) -> int:
        """Return the number of tokens in an event, including tokens of a repeated prompt."""
        return last - first + (0 if first else len(self._prompt.token_ids))

    def _usage(self, num_tokens: int) -> Usage | None:
        if not self._stream.job.delivery.continuous_usage:
            return None
        return self._stream.job.accounting.running_usage(self._prompt, self._number, num_tokens)

    def _text_template(self) -> EventTemplate:
        """Return the template of an event with only text."""
        stream, new_piece = self._stream, self._writer.text_piece
        templates, usual = stream.job.templates, stream.usual_bodies
        if templates is None or usual is None:
            return self._new_template(new_piece(PLACEHOLDER))
        return templates.token(usual, self._index, new_piece, stream.chunked)

    def _end_template(self, ending: Ending) -> EventTemplate | None:
        """Return the template of the last event, if it has only text and the finish reason."""
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
