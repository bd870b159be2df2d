"""Where the tokens of a streamed reply go: into an event per step that brought any, or per few."""

from dataclasses import replace
from typing import Any

from mockserve.content.answer import Kind
from mockserve.protocol.bodies import Ending, Piece, Usage
from mockserve.replies.choice_writer import ChoiceWriter
from mockserve.replies.collected import ending_at, engine_reason, failure
from mockserve.replies.event_stream import EventStream
from mockserve.replies.frames import PLACEHOLDER, EventTemplate, event_template
from mockserve.replies.generation import PlannedPrompt
from mockserve.replies.reply_set import AT_THE_END


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
        self._end(num_tokens, ending_at(self._generation, num_tokens, is_stream=True))

    def abort(self, num_tokens: int) -> None:
        self._end(num_tokens, Ending("abort"))

    def _end(self, num_tokens: int, ending: Ending) -> None:
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

        stream.send_made(last_event, self._num_told(first, num_tokens))
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
        first = self._num_sent
        self._num_sent = number

        def next_event() -> dict[str, Any] | None:
            piece = self._writer.piece(first, number)
            return None if piece is None else self._stream.bodies.chunk(self._index, piece, self._usage(number))

        self._stream.send_made(next_event, self._num_told(first, number))

    def _num_told(self, first: int, last: int) -> int:
        """How many tokens an event may tell of, those of the prompt included where it is repeated."""
        return last - first + (0 if first else len(self._prompt.token_ids))

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
