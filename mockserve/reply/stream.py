"""The response to a request as a stream of events, or as one JSON object."""

import asyncio
import json
from asyncio import Transport
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiohttp import HttpVersion11, web
from multidict import istr

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros
from mockserve.faults import ShapedTransport
from mockserve.generation.answer import Answer, Kind
from mockserve.http.aiohttp_internals import mark_reply_as_begun
from mockserve.http.connection import TimestampedConnection
from mockserve.http.headers import EVENT_STREAM, Caller, caller_of
from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.json_text import reply_blocks, reply_json
from mockserve.realtime.driver import EngineInfo
from mockserve.reply.frames import (
    DONE,
    DONE_CHUNK,
    PLACEHOLDER,
    TextFrame,
    event,
    filled,
    http_chunk,
    text_frame,
    with_templates,
)
from mockserve.reply.reply import (
    AT_THE_END,
    DELIVERY,
    ChoiceWriter,
    NewTextPiece,
    PlannedChoice,
    Reply,
    ReplyDelivery,
    ReplyJob,
    collect,
)

END_OF_CHUNKS = b"0\r\n\r\n"

COMMENT = b": keep-alive\n\n"
"""vLLM's keep-alive comment; SSE clients ignore it."""


class SSEWriter:
    """The response to `request` as a stream of events, which begins and ends with an `async with` block.

    Events written before the block are kept until it begins. Events of one wake-up of the driver are sent in one write,
    directly to the transport, unless the client has disconnected. The block raises ConnectionResetError when the client
    has disconnected before it.
    """

    response: web.StreamResponse
    _transport: Transport

    def __init__(self, request: web.Request) -> None:
        self.chunked = request.version >= HttpVersion11  # once the head is written every version is 1.1
        """Whether each event must be wrapped as an HTTP chunk."""
        self.is_open = False
        """Whether the status of the response is decided. Events that come before are kept."""
        self.due_s = 0.0
        """Instant at which the first buffered frame was due."""
        self._request = request
        self.delivery = request.app[DELIVERY]
        self._wire = self.delivery.wire
        self._writes_separately = False
        self._head = b""
        self._ends_response = False
        self._end = b""
        """The bytes that end the stream; empty while events may follow."""
        self._frames: list[bytes] = []
        self._comment_s = 0
        self._comment_timer: asyncio.TimerHandle | None = None
        self._last_sent_s = 0.0
        self._connection: TimestampedConnection | None = None
        """The connection that limits unsent bytes, if there is one."""

    async def __aenter__(self) -> Self:
        request, delivery = self._request, self.delivery
        head = delivery.heads.head_for(request)
        response = delivery.heads.response if head is not None else await _prepare_with_aiohttp(request)
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client left before the first token")
        connection = transport.get_protocol()
        if isinstance(connection, TimestampedConnection):
            connection.limit_backlog(delivery.slow_readers)
            self._connection = connection
        self.open(response, transport, head or b"")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._comment_timer is not None:
            self._comment_timer.cancel()
            self._comment_timer = None
        try:
            if kind is None:
                self.finish()
                with suppress(ConnectionResetError):  # a client may leave as soon as it has the last event
                    if self.response is not self.delivery.heads.response:
                        await self.response.write_eof()
                    await self._request.writer.drain()
            elif not self.forget_head():
                mark_reply_as_begun(self._request)
        finally:
            if self._connection is not None:
                self._connection.end_limit()

    def open(self, response: web.StreamResponse, transport: Transport, head: bytes = b"") -> None:
        """Let events go to `transport`. `head` is sent with the first event or soon; it is empty if it has been sent
        already."""
        self.is_open = True
        self.response = response
        self._transport = transport
        self._writes_separately = isinstance(transport, ShapedTransport)  # which counts events by writes
        self._head = head
        self._ends_response = bool(head)
        if self._frames:
            self.leave()
        elif head:
            self._wire.send_head_soon(self)

    def send_comments(self, interval_s: int) -> None:
        """Send a comment after each `interval_s` seconds without data."""
        self._comment_s = interval_s
        self._last_sent_s = asyncio.get_running_loop().time()
        self._schedule_comment()

    def _schedule_comment(self) -> None:
        loop = asyncio.get_running_loop()
        self._comment_timer = loop.call_at(self._last_sent_s + self._comment_s, self._send_comment)

    def _send_comment(self) -> None:
        if asyncio.get_running_loop().time() >= self._last_sent_s + self._comment_s:
            self.send(COMMENT)
        self._schedule_comment()

    def write(self, data: bytes) -> None:
        """Write bytes unchanged."""
        wire, frames = self._wire, self._frames
        if not frames and self.is_open:
            if not wire.is_held:
                frames.append(data)
                self.leave()
                return
            self.due_s = wire.due_s
            wire.departing.append(self)
        frames.append(data)

    def write_all(self, frames: list[bytes]) -> None:
        """Write one or more events as they are."""
        if not self._wire.is_held:
            self.write(b"".join(frames))
            return
        self.write(frames[0])
        self._frames += frames[1:]

    def send(self, data: bytes) -> None:
        """Write one event."""
        self.write(http_chunk(data) if self.chunked else data)

    def leave(self) -> int:
        """Send all buffered frames in one write, with the head before the first and the end behind the last.

        Returns the number of frames.
        """
        frames, self._frames = self._frames, []
        num_frames = len(frames)
        if self._head or self._end:
            frames = [each for each in (self._head, *frames, self._end) if each]
            self._head = self._end = b""
        if self._comment_timer is not None:
            self._last_sent_s = asyncio.get_running_loop().time()
        transport = self._transport
        if not transport.is_closing():
            for data in frames if self._writes_separately else (b"".join(frames),):
                transport.write(data)
        return num_frames

    def send_head(self) -> None:
        """Send the head, unless an event has sent it."""
        if self._head and not self._frames:
            self.leave()

    def forget_head(self) -> bool:
        """Drop the head, if it has not been sent. Returns whether it was still unsent."""
        head, self._head = self._head, b""
        return bool(head)

    def finish(self) -> None:
        """End the response: the end is sent with buffered frames, or at once."""
        if self._ends_response:
            self._ends_response = False
            self._end = END_OF_CHUNKS
            if not self._frames:
                self.leave()

    def break_off(self) -> None:
        """Send buffered frames, then close the connection without the end of the response."""
        self._ends_response = False
        self.leave()
        self._transport.close()


async def _prepare_with_aiohttp(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # the end of the connection is the end of the stream
    await response.prepare(request)
    return response


# The events of a stream, in order. Large events of a long reply are made on another thread.

TOKENS_AT_ONCE = 64
"""Number of tokens of an event from which making its details takes milliseconds."""
CHOICES_AT_ONCE = 256


class _LargeEvent(NamedTuple):
    """An event that is made on another thread."""

    make: Callable[[], bytes]


class StreamedReply(Reply, SSEWriter):
    """One reply as a stream of events: those of its choices, and the events around them.

    An event is sent for each step with new tokens of a choice, or for every few tokens. Events that differ only in
    their text are filled into a frame. While a large event is made, later events wait for it.
    """

    is_streamed = True

    def __init__(self, request: web.Request, job: ReplyJob, arrived_at: Micros, caller: Caller) -> None:
        SSEWriter.__init__(self, request)
        Reply.__init__(self, self.delivery, job, arrived_at, caller)
        self.usual_bodies = None if job.templates is None else with_templates(job.bodies)
        """Bodies for which event templates are shared between streams."""
        self._frames_by_kind: dict[tuple[int, Kind, int], TextFrame] = {}
        """Frames of the events of a choice with one kind of text, of which a call has a number."""
        self._fills = not job.delivery.continuous_usage and job.stream_interval == 1
        """Whether events may be filled into frames."""
        self.has_begun = False
        """Whether the events before the first token have been sent."""
        self._waiting: deque[_LargeEvent | Callable[[], None]] | None = None
        """Large events, and calls to repeat once those before are made; None if no event is being made."""

    def begin(self) -> None:
        """Send the events before the first token of any choice."""
        self.has_begun = True
        if self.job.is_long and self.num_choices > CHOICES_AT_ONCE:
            self._make(lambda: b"".join(self._openings()))
            return
        for each in self._openings():
            self.write_event(each)

    def _openings(self) -> Iterable[bytes]:
        job, templates, usual = self.job, self.job.templates, self.usual_bodies
        num_choices = self.num_choices if job.num_announced is None else job.num_announced
        prompt, has_usage = job.prompts[0], job.delivery.continuous_usage
        if templates and usual and not prompt.shows_text and not has_usage:
            return templates.opening(usual, num_choices, self.chunked)
        usage = job.accounting.running_usage(prompt, 0, 0) if has_usage else None
        chunks = job.bodies.opening_chunks(num_choices, prompt.prompt_output, usage)
        return (self._framed(event(each)) for each in chunks)

    def send_if_any(self, make: Callable[[], dict[str, Any] | None], num_tokens: int) -> None:
        """Send the event that `make` returns, if any, for `num_tokens` tokens."""

        def made() -> bytes:
            body = make()
            return b"" if body is None else self._framed(event(body))

        if self.job.is_long and (self._waiting is not None or num_tokens > TOKENS_AT_ONCE):
            self._make(made)
        elif data := made():
            self.write_event(data)

    def write_event(self, data: bytes) -> None:
        """Write the bytes of an event. Events after the end of the stream are dropped."""
        if self._waiting is not None:
            self._waiting.append(lambda: self.write_event(data))
        elif not self.done.done():
            self.write(data)

    def write_events(self, events: list[bytes]) -> None:
        """Write several events of one step."""
        if self._waiting is not None:
            self._waiting.append(lambda: self.write_events(events))
        elif not self.done.done():
            self.write_all(events)

    def begin_choice(self, choice: PlannedChoice) -> None:
        choice.new_piece = self.job.text_pieces(choice)
        if self._fills and choice.new_piece is not None:
            choice.frame = self._text_frame(choice, choice.new_piece, None)

    def token(self, choice: PlannedChoice, number: int) -> None:
        num_sent, frame = choice.num_sent, choice.frame
        if not self.has_begun:
            self.begin()
        if frame is None:
            self._token_of_a_kind(choice, number)
            return
        choice.num_sent = number
        texts = choice.answer.texts
        text = texts[num_sent] if number == num_sent + 1 else "".join(texts[num_sent:number])
        self.write_event(filled(frame, text, self.chunked))

    def tokens(self, choice: PlannedChoice, first: int, last: int) -> None:
        frame = choice.frame
        if frame is None or not choice.num_sent:
            super().tokens(choice, first, last)
            return
        choice.num_sent = last
        self.write_events([filled(frame, text, self.chunked) for text in choice.answer.texts[first - 1 : last]])

    def ending_of(self, choice: PlannedChoice, num_tokens: int) -> Ending:
        return choice.ending_at(num_tokens, is_stream=True)

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        first, job, params = choice.num_sent, self.job, self.job.kv_transfer_params
        if not self.has_begun:
            self.begin()
        new_piece = choice.new_piece if choice.frame is not None and self.usual_bodies is not None else None
        if num_tokens and new_piece is not None and ending.stop_reason is None and params is None:
            frame = self._text_frame(choice, new_piece, ending.finish_reason)
            self.write_event(filled(frame, "".join(choice.answer.texts[first:num_tokens]), self.chunked))
            self._end_if_last(num_tokens)
            return

        def last_event() -> dict[str, Any]:
            piece = self._writer_of(choice).last_piece(first, num_tokens)
            piece = piece._replace(ending=ending, num_tokens=num_tokens, kv_transfer_params=params)
            return job.bodies.chunk(choice.index, piece, self._usage_of(choice, num_tokens))

        self.send_if_any(last_event, self._num_reported(choice, first, num_tokens))
        self._end_if_last(num_tokens)

    def _end_if_last(self, num_tokens: int) -> None:
        """Count a choice; after the last one, end the stream."""
        if self._waiting is not None:
            self._waiting.append(lambda: self._end_if_last(num_tokens))
        elif self.count_ended(num_tokens) and not self.done.done():
            if self.job.delivery.include_usage:
                usage, metrics = self.usage(is_stream=True), self.metrics(is_stream=True)
                self.write(self._framed(event(self.job.bodies.usage_chunk(usage, metrics))))
            self.write(DONE_CHUNK if self.chunked else DONE)
            self.finish()
            self.resolve()

    def fail(self, error: ApiError) -> None:
        """End the stream with an error: the status of the response while it is undecided, else an event."""
        if self._waiting is not None:
            self._waiting.clear()
            self._waiting = None
        if not self.is_open:
            super().fail(error)
        elif not self.done.done():
            self.write(self._framed(self.job.errors.event(error)))
            self.write(self._framed(DONE))
            self.finish()
            self.resolve()

    def _framed(self, data: bytes) -> bytes:
        return http_chunk(data) if self.chunked else data

    def _make(self, make: Callable[[], bytes]) -> None:
        """Write the event that `make` returns on a thread, after all events before it."""
        if self._waiting is not None:
            self._waiting.append(_LargeEvent(make))
            return
        self._waiting = deque((_LargeEvent(make),))
        task = asyncio.create_task(self._write_made(self._waiting))
        self.done.add_done_callback(lambda _: task.cancel())

    async def _write_made(self, waiting: deque[_LargeEvent | Callable[[], None]]) -> None:
        while waiting:
            first = waiting.popleft()
            if isinstance(first, _LargeEvent):
                data = await self.delivery.executor.run(True, first.make)
                if data and not self.done.done():
                    self.write(data)
            else:
                self._waiting = None
                first()
                self._waiting = waiting
        self._waiting = None

    def _writer_of(self, choice: PlannedChoice) -> ChoiceWriter:
        """Return the writer of a choice, which a choice of only text does not need."""
        writer = choice.writer
        if writer is None:
            writer = choice.writer = self.job.new_writer(self.job.prompts[choice.prompt_number], choice)
        return writer

    def _token_of_a_kind(self, choice: PlannedChoice, number: int) -> None:
        """Fill the event into the frame for its kind of text, if a single token has only text."""
        is_single = self._fills and number == choice.num_sent + 1
        single_delta = self._writer_of(choice).single_delta(choice.num_sent) if is_single else None
        if single_delta is None:
            self._token_in_full(choice, number)
            return
        choice.num_sent = number
        key = (choice.index, single_delta.kind, single_delta.call)
        frame = self._frames_by_kind.get(key)
        if frame is None:
            blank = self._writer_of(choice).single_delta_piece(replace(single_delta, text=PLACEHOLDER))
            frame = self._frames_by_kind[key] = text_frame(self.job.bodies.chunk(choice.index, blank, None))
        self.write_event(filled(frame, single_delta.text, self.chunked))

    def _token_in_full(self, choice: PlannedChoice, number: int) -> None:
        """Make an event without a frame, if one is due and has content."""
        interval, first = self.job.stream_interval, choice.num_sent
        if interval == AT_THE_END or (first and number < first + interval):
            return
        choice.num_sent = number

        def next_event() -> dict[str, Any] | None:
            piece = self._writer_of(choice).piece(first, number)
            if piece is None:
                return None
            return self.job.bodies.chunk(choice.index, piece, self._usage_of(choice, number))

        self.send_if_any(next_event, self._num_reported(choice, first, number))

    def _num_reported(self, choice: PlannedChoice, first: int, last: int) -> int:
        """Return the number of tokens in an event, including tokens of a repeated prompt."""
        return last - first + (0 if first else len(self.job.prompts[choice.prompt_number].token_ids))

    def _usage_of(self, choice: PlannedChoice, num_tokens: int) -> Usage | None:
        if not self.job.delivery.continuous_usage:
            return None
        return self.job.accounting.running_usage(self.job.prompts[choice.prompt_number], choice.number, num_tokens)

    def _text_frame(self, choice: PlannedChoice, new_piece: NewTextPiece, finish_reason: str | None) -> TextFrame:
        """Return the frame of an event with only text, and of the last one a finish reason."""
        templates, usual = self.job.templates, self.usual_bodies
        if templates is None or usual is None:
            return text_frame(self.job.bodies.chunk(choice.index, new_piece(PLACEHOLDER), None))
        return templates.text_frame(usual, choice.index, new_piece, finish_reason)


# The response to a request: streamed or whole, and released when the client disconnects.

_BELOW_THRESHOLD = Answer([], Ending("cache_threshold"), [], [])
"""The answer to a prompt that the KV cache holds too little of."""


async def answer(
    request: web.Request,
    delivery: ReplyDelivery,
    job: ReplyJob,
    arrived_at: Micros,
    headers: Mapping[str, str] | None = None,
    cache_hit_threshold: object = None,
) -> web.StreamResponse:
    """Reply to `request`. `headers` are for a whole reply.

    `arrived_at` is the arrival of the request on the driver's clock, so that reading the body costs no simulated time.
    `cache_hit_threshold` is that of the request, in place of the server's.
    """
    caller = caller_of(request)
    if delivery.cache_hit_threshold is not None:
        threshold = delivery.cache_hit_threshold if cache_hit_threshold is None else cache_hit_threshold
        job = _with_threshold(delivery, job, threshold)
    if job.delivery.stream:
        stream = StreamedReply(request, job, arrived_at, caller)
        is_refused = delivery.suspension.rejects_new
        with delivery.open_replies, stream:
            # The response begins when the engine has placed the requests: a router refuses with a status.
            if not is_refused:
                await stream.placed()
            async with stream:
                if is_refused:
                    stream.fail(job.errors.paused())
                elif delivery.keep_alive_s and job.gets_comments:
                    stream.send_comments(delivery.keep_alive_s)
                await stream.ended()
        return stream.response
    reply, choices = await collect(delivery, job, arrived_at, caller)

    def whole() -> dict[str, Any]:
        return job.bodies.whole(choices, reply.usage(is_stream=False), reply.metrics(is_stream=False))

    return await json_body(request, whole, job.is_long, headers)


def _with_threshold(delivery: ReplyDelivery, job: ReplyJob, threshold: object) -> ReplyJob:
    """Return the job without tokens if the KV cache holds less of a prompt. Raises ApiError for a bad threshold."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise bad_value("cache_hit_threshold must be between 0 and 1", "cache_hit_threshold", repr(threshold)[:40])
    requests = [prompt.choices[0].request for prompt in job.prompts]
    fractions = delivery.driver.call_engine(lambda engine, _at: [_cached_fraction(engine, each) for each in requests])
    if min(fractions) >= threshold:
        return job
    prompts = [
        prompt._replace(choices=[replace(each, answer=_BELOW_THRESHOLD) for each in prompt.choices])
        for prompt in job.prompts
    ]
    return job._replace(prompts=prompts, is_empty=True)


def _cached_fraction(engine: Engine, request: Request) -> float:
    """Return the fraction of a prompt's tokens in full blocks that the KV cache holds at present."""
    known, block_tokens = engine.kv.index.identities_now(), engine.config.block_size_tokens
    num_blocks = 0
    while (num_blocks + 1) * block_tokens <= request.input_tokens and request.blocks.identity(num_blocks) in known:
        num_blocks += 1
    return num_blocks * block_tokens / request.input_tokens


async def refuse(
    request: web.Request, error: ApiError, is_stream: bool, events: Sequence[bytes] = ()
) -> web.StreamResponse:
    """Answer a request with an error. Raises `error` unless it must be an event of a stream.

    `events` replace the error events of OpenAI's API.
    """
    if not (is_stream and error.is_late):
        raise error
    async with SSEWriter(request) as writer:
        for each in events or (event(error.body()), DONE):
            writer.send(each)
    return writer.response


FORMAT_HEADER = istr("endpoint-load-metrics-format")
LOAD_HEADER = "endpoint-load-metrics"


def load_headers(api_request: str | None, engine: EngineInfo) -> Mapping[str, str]:
    """Return the load header in the requested format, `TEXT` or `JSON`; no header for any other."""
    if not api_request:
        return {}
    stats = engine.stats
    metrics = {
        "num_requests_waiting": float(stats.num_waiting),
        "kv_cache_usage_perc": float(stats.kv_usage_fraction),
    }
    requested = api_request.upper()
    if requested == "TEXT":
        named = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
        return {LOAD_HEADER: f"TEXT {named}"}
    if requested == "JSON":
        return {LOAD_HEADER: f"JSON {json.dumps({'named_metrics': metrics})}"}
    return {}


JSON = "application/json"
WHOLE_BYTES = 1 << 20
"""A longer body is sent in parts."""
PART_BYTES = 1 << 18


async def json_body(
    request: web.Request,
    make: Callable[[], Any],
    is_long: bool,
    headers: Mapping[str, str] | None = None,
    status: int = HTTPStatus.OK,
) -> web.StreamResponse:
    """Respond to `request` with the result of `make` as JSON."""
    if not is_long:
        return web.Response(status=status, body=reply_json(make()), content_type=JSON, headers=headers)
    parts = _JsonParts(make)
    executor = request.app[DELIVERY].executor
    body = await executor.run(True, parts.next, WHOLE_BYTES)
    if not parts.has_more:
        return web.Response(status=status, body=body, content_type=JSON, headers=headers)
    response = web.StreamResponse(status=status, headers={**(headers or {}), "Content-Type": JSON})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    await response.prepare(request)
    while body:
        await response.write(body)
        body = await executor.run(True, parts.next, PART_BYTES) if parts.has_more else b""
    await response.write_eof()
    return response


class _JsonParts:
    """The text of a JSON value, part by part."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._blocks: Iterator[bytes] | None = None
        self.has_more = True

    def next(self, least_bytes: int) -> bytes:
        """Return at least `least_bytes` bytes; fewer at the end."""
        if self._blocks is None:
            self._blocks = reply_blocks(self._make())
        found: list[bytes] = []
        num_bytes = 0
        for each in self._blocks:
            found.append(each)
            num_bytes += len(each)
            if num_bytes >= least_bytes:
                break
        else:
            self.has_more = False
        return b"".join(found)
