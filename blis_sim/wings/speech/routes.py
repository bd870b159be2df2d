"""POST /v1/audio/transcriptions and /v1/audio/translations, and the WebSocket of /v1/realtime."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from uuid import uuid4

from aiohttp import WSMsgType, hdrs, web

from blis_sim.engine.units import Micros
from blis_sim.wings.speech.bodies import (
    GRANULARITIES,
    TRANSCRIBE,
    TRANSLATE,
    SpeechChunks,
    SpeechRequest,
    SpeechTask,
    check_speech,
    parse_speech,
    whole_speech,
)
from blis_sim.wings.speech.plan import SpeechPlan, plan_speech, plan_stretch
from blis_sim.wings.speech.realtime import (
    LONG_EVENT_CHARS,
    AudioAppend,
    AudioBuffer,
    ErrorReply,
    Segment,
    SessionUpdate,
    delta,
    done,
    error_event,
    read_event,
    session_created,
)
from mockserve.executor.executor import LARGE_BYTES
from mockserve.http.connection import arrived_at
from mockserve.http.headers import Caller, caller_of
from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.forms import form_reader
from mockserve.realtime.driver import unix_time
from mockserve.reply.frames import DONE, event
from mockserve.reply.reply import PlannedChoice, Reply, ReplyDelivery, ReplyJob, collect
from mockserve.reply.stream import SSEWriter
from mockserve.routes.shared import json_reply, receive_body, reply_id
from mockserve.serving.service import SERVICE, Service


class SegmentedReply(Reply):
    """A reply to speech: its choices are the segments of a recording, whose texts `add` takes.

    `separator` stands between the text of a segment and that of the preceding one.
    """

    is_streamed = True
    separator = ""

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        """Add new text of segment `number`."""
        raise NotImplementedError

    def token(self, choice: PlannedChoice, number: int) -> None:
        self._add(choice, number, None)

    def end_choice(self, choice: PlannedChoice, num_tokens: int, ending: Ending) -> None:
        self._add(choice, num_tokens, ending)

    def _add(self, choice: PlannedChoice, number: int, ending: Ending | None) -> None:
        first, choice.num_sent = choice.num_sent, number
        texts = choice.answer.texts
        text = "".join(texts[first:number])
        if choice.index and text and not any(texts[:first]):
            text = self.separator + text
        self.add(choice.index, text, ending, number - first)


class SpeechStream(SegmentedReply):
    """The events of one stream. Text of a later segment is held back until all earlier segments have ended."""

    def __init__(
        self,
        delivery: ReplyDelivery,
        job: ReplyJob,
        arrived_at: Micros,
        caller: Caller,
        separator: str,
        chunks: SpeechChunks,
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(delivery, job, arrived_at, caller)
        self.separator = separator
        self.chunks = chunks
        self._send = send
        self._current = 0
        self._waiting: list[list[tuple[str, Ending | None, int]]] = [[] for _ in job.prompts]
        self._num_tokens = 0

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        self._waiting[number].append((text, ending, num_new))
        while self._current < len(self._waiting) and self._waiting[self._current]:
            self._send_text(*self._waiting[self._current].pop(0))

    def fail(self, error: ApiError) -> None:
        """Send the error as an event, since the status has been sent."""
        self._send(error.body())
        self.resolve()

    def _send_text(self, text: str, ending: Ending | None, num_new: int) -> None:
        self._num_tokens += num_new
        usage = Usage(len(self.job.prompts[self._current].token_ids), self._num_tokens)
        if text or ending is not None:
            self._send(self.chunks.text(text, ending, usage if self.job.delivery.continuous_usage else None))
        if ending is None:
            return
        self._current += 1
        if self._current == len(self._waiting):
            if self.job.delivery.include_usage:
                self._send(self.chunks.usage(usage))
            self.resolve()


MAX_FILE_BYTES = 25 * 2**20
PIECE_BYTES = 64 * 1024
"""Bytes of a form that are read at a time."""


async def transcribe(request: web.Request) -> web.StreamResponse:
    """Transcribe a recording."""
    return await _answer(request, TRANSCRIBE)


async def translate(request: web.Request) -> web.StreamResponse:
    """Translate a recording into English."""
    return await _answer(request, TRANSLATE)


async def _answer(request: web.Request, speech: SpeechTask) -> web.StreamResponse:
    service = request.app[SERVICE]
    form = await _form(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = parse_speech(form, speech)
    recording = bytes(form["file"].data)
    if len(recording) > MAX_FILE_BYTES:
        raise bad_value("Maximum file size exceeded", "audio_filesize_mb", len(recording) / 2**20)
    adapter = service.model.check_model(api_request.form.model or "")
    model = service.model.reply_name(adapter)
    check_speech(api_request, model)
    name = reply_id(request, speech.verb, None)
    plan = await plan_speech(service.model, api_request, speech, recording, name, adapter)
    if api_request.delivery.stream:
        chunks = SpeechChunks(id=name, created=unix_time(), model=model, speech=speech)
        return await _stream(request, service.delivery, api_request, plan, chunks, arrived)
    _, choices = await collect(service.delivery, plan.job, arrived, _trace_context(request))
    return json_reply(whole_speech(api_request, speech, plan.segments(list(choices)), plan.duration_s))


async def _form(request: web.Request) -> dict[str, Any]:
    """Return the fields of a form; of repeated names the last value counts, except for lists."""
    reader = form_reader(request.headers.get(hdrs.CONTENT_TYPE, ""))
    if reader is None:
        return {}
    body = await receive_body(request)
    for begin in range(0, len(body), PIECE_BYTES):
        reader.write(body[begin : begin + PIECE_BYTES])
        await asyncio.sleep(0)  # lets the event loop serve other replies
    reader.finish()
    form: dict[str, Any] = dict(reader.items)
    if GRANULARITIES in form:
        form[GRANULARITIES] = [value for name, value in reader.items if name == GRANULARITIES]
    return form


async def _stream(
    request: web.Request,
    delivery: ReplyDelivery,
    api_request: SpeechRequest,
    plan: SpeechPlan,
    chunks: SpeechChunks,
    arrived: Micros,
) -> web.StreamResponse:
    caller, separator = _trace_context(request), api_request.separator
    with delivery.open_replies:
        async with SSEWriter(request) as writer:
            send = partial(_send_event, writer)
            stream = SpeechStream(delivery, plan.job, arrived, caller, separator, chunks, send)
            if delivery.suspension.rejects_new:
                stream.fail(plan.job.errors.paused())
            else:
                await stream.run()
            writer.send(DONE)
        return writer.response


def _send_event(writer: SSEWriter, chunk: dict[str, Any]) -> None:
    writer.send(event(chunk))


def _trace_context(request: web.Request) -> Caller:
    """Return the caller with its trace context only: vLLM's speech routes read no other caller header."""
    caller = caller_of(request)
    return Caller(traceparent=caller.traceparent, tracestate=caller.tracestate)


MOST_MESSAGE_BYTES = 2 * 2**20
"""Maximum size of one event, so that parsing does not delay other clients; vLLM's WebSocket library allows 16 MiB."""


async def realtime(request: web.Request) -> web.StreamResponse:
    """Transcribe speech received over a WebSocket."""
    socket = web.WebSocketResponse(max_msg_size=MOST_MESSAGE_BYTES, autoping=False)
    if not socket.can_prepare(request):
        raise web.HTTPNotFound
    await socket.prepare(request)
    service = request.app[SERVICE]
    counts = service.metrics_source.http.websockets
    with nullcontext() if counts is None else counts.counted():
        await _Connection(socket, service, _trace_context(request)).serve()
    return socket


class _Connection:
    """One client's WebSocket: its audio, and the running transcription."""

    def __init__(self, socket: web.WebSocketResponse, service: Service, caller: Caller) -> None:
        self._socket = socket
        self._service = service
        self._caller = caller
        self._id = f"ws-{uuid4()}"
        self._audio = AudioBuffer()
        self._transcript = asyncio.Event()
        self._has_model = False
        self._transcribing: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer events until the client disconnects."""
        await self._socket.send_str(session_created(uuid4().hex))
        try:
            async for message in self._socket:
                if message.type is WSMsgType.TEXT:
                    await self._handle_event(message.data)
                elif message.type is WSMsgType.PING:
                    await self._socket.pong(message.data)
                elif message.type is not WSMsgType.PONG:
                    break
                await asyncio.sleep(0)  # a thousand messages may be buffered
        finally:
            if self._transcribing is not None:
                self._transcribing.cancel()
                with suppress(asyncio.CancelledError):
                    await self._transcribing

    async def _handle_event(self, text: str) -> None:
        service = self._service
        read = partial(read_event, text, service.model.names, self._has_model)
        is_long = len(text) > LONG_EVENT_CHARS
        event = await service.delivery.executor.run(len(text) > LARGE_BYTES, read) if is_long else read()
        if isinstance(event, ErrorReply):
            await self._socket.send_str(event.text)
        elif isinstance(event, SessionUpdate):
            self._has_model = True
        elif isinstance(event, AudioAppend):
            self._audio.append(event.samples)
            self._transcript.set()
        elif event.is_final:
            if not self._audio.end():
                await self._socket.close(code=1008, message=b"too many ends of utterances")
            self._transcript.set()
        elif self._transcribing is None or self._transcribing.done():
            self._transcribing = asyncio.create_task(self._transcribe())

    async def _transcribe(self) -> None:
        """Send the text of one utterance in deltas, then as a whole."""
        utterance = _Utterance()
        try:
            with self._service.delivery.open_replies:
                async for segment in self._segments():
                    await self._transcribe_segment(segment, utterance)
            usage = Usage(utterance.num_prompt_tokens, utterance.num_tokens)
            await self._socket.send_str(done(utterance.text, usage))
            self._audio.clear()
        except ApiError as error:
            await self._socket.send_str(error_event(error.message, "processing_error"))
        except ConnectionError:
            return  # the client has disconnected

    async def _segments(self) -> AsyncIterator[Segment]:
        while True:
            segment, is_end = self._audio.take()
            if is_end:
                return
            if segment is not None:
                yield segment
            else:
                self._transcript.clear()
                await self._transcript.wait()

    async def _transcribe_segment(self, segment: Segment, utterance: "_Utterance") -> None:
        """Transcribe a segment as a continuation of the previous segments."""
        delivery = self._service.delivery
        name = f"rt-{self._id}-{uuid4()}"
        source = f"realtime {segment.digest} {segment.num_samples}"
        job = await plan_stretch(self._service.model, utterance.ids, source, segment.duration_s, name)
        (prompt,) = job.prompts
        utterance.num_prompt_tokens = utterance.num_prompt_tokens or len(prompt.token_ids)
        if delivery.suspension.rejects_new:
            raise job.errors.paused()
        texts = _SegmentReply(delivery, job, delivery.driver.clock(), self._caller)
        submitted = asyncio.ensure_future(texts.run())
        submitted.add_done_callback(lambda _: texts.queue.put_nowait(None))
        try:
            while (piece := await texts.queue.get()) is not None:
                text, num_new = piece
                utterance.text += text
                utterance.num_tokens += num_new
                await self._socket.send_str(delta(text))
            await submitted
        finally:
            submitted.cancel()
        if texts.error is not None:
            raise texts.error
        utterance.ids = [*prompt.token_ids, *prompt.choices[0].answer.token_ids]


class _Utterance:
    """Text, tokens and prompt of one utterance so far."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.num_prompt_tokens = 0
        self.num_tokens = 0


class _SegmentReply(SegmentedReply):
    """Queue of new text of one segment for the connection."""

    def __init__(self, delivery: ReplyDelivery, job: ReplyJob, arrived_at: Micros, caller: Caller) -> None:
        super().__init__(delivery, job, arrived_at, caller)
        self.queue: asyncio.Queue[tuple[str, int] | None] = asyncio.Queue()
        self.error: ApiError | None = None

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        """Append new text of the segment; `ending` ends the reply."""
        del number  # a reply has one segment
        if num_new:
            self.queue.put_nowait((text, num_new))
        if ending is not None:
            self.resolve()

    def fail(self, error: ApiError) -> None:
        """End the segment with an error."""
        self.error = error
        self.resolve()
