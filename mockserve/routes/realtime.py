"""The WebSocket of /v1/realtime: speech comes in pieces, and its text goes out as it is transcribed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from functools import partial
from uuid import uuid4

from aiohttp import WSMsgType, web

from mockserve.planning.speech import plan_stretch
from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.errors import ApiError
from mockserve.protocol.realtime import AudioBuffer, Segment, delta, done, session_created
from mockserve.protocol.realtime_events import (
    LONG_EVENT_CHARS,
    AudioAppend,
    Refused,
    SessionUpdate,
    failed,
    read_event,
)
from mockserve.replies.reply_set import ReplySet
from mockserve.responding.answer import fly
from mockserve.responding.event_streams import SpokenStretch
from mockserve.serving.aside import LARGE_BYTES
from mockserve.serving.service import SERVICE, Service
from mockserve.transport.clients import Caller, caller_of

MOST_MESSAGE_BYTES = 2 * 2**20
"""Bytes of one event, so that none holds up other clients; vLLM has the limit of its WebSocket library, 16 MiB."""


async def realtime(request: web.Request) -> web.StreamResponse:
    """Transcribe speech that comes over a WebSocket."""
    socket = web.WebSocketResponse(max_msg_size=MOST_MESSAGE_BYTES, autoping=False)
    if not socket.can_prepare(request):
        raise web.HTTPNotFound
    await socket.prepare(request)
    service = request.app[SERVICE]
    counts = service.metrics_source.http.websockets
    with nullcontext() if counts is None else counts.counted():
        await _Connection(socket, service, caller_of(request)).serve()
    return socket


class _Connection:
    """One client: its audio, and the transcription under way."""

    def __init__(self, socket: web.WebSocketResponse, service: Service, caller: Caller) -> None:
        self._socket = socket
        self._service = service
        self._caller = Caller(traceparent=caller.traceparent, tracestate=caller.tracestate)
        self._id = f"ws-{uuid4()}"
        self._audio = AudioBuffer()
        self._heard = asyncio.Event()
        self._has_model = False
        self._transcribing: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer events until the client leaves."""
        await self._socket.send_str(session_created(uuid4().hex))
        try:
            async for message in self._socket:
                if message.type is WSMsgType.TEXT:
                    await self._take(message.data)
                elif message.type is WSMsgType.PING:
                    await self._socket.pong(message.data)
                elif message.type is not WSMsgType.PONG:
                    break
                await asyncio.sleep(0)  # a thousand messages may have come at once
        finally:
            if self._transcribing is not None:
                self._transcribing.cancel()
                with suppress(asyncio.CancelledError):
                    await self._transcribing

    async def _take(self, text: str) -> None:
        service = self._service
        read = partial(read_event, text, service.model.names, self._has_model)
        is_long = len(text) > LONG_EVENT_CHARS
        event = await service.delivery.aside.run(len(text) > LARGE_BYTES, read) if is_long else read()
        if isinstance(event, Refused):
            await self._socket.send_str(event.text)
        elif isinstance(event, SessionUpdate):
            self._has_model = True
        elif isinstance(event, AudioAppend):
            self._audio.append(event.samples)
            self._heard.set()
        elif event.is_final:
            if not self._audio.end():
                await self._socket.close(code=1008, message=b"too many ends of utterances")
            self._heard.set()
        elif self._transcribing is None or self._transcribing.done():
            self._transcribing = asyncio.create_task(self._transcribe())

    async def _fail(self, message: str, code: str) -> None:
        await self._socket.send_str(failed(message, code))

    async def _transcribe(self) -> None:
        """Send the text of one utterance as it comes, then all of it."""
        utterance = _Utterance()
        try:
            with self._service.delivery.open_replies:
                async for segment in self._segments():
                    await self._hear(segment, utterance)
            usage = Usage(utterance.num_prompt_tokens, utterance.num_tokens)
            await self._socket.send_str(done(utterance.text, usage))
            self._audio.clear()
        except ApiError as error:
            await self._fail(error.message, "processing_error")
        except ConnectionError:
            return  # the client has left

    async def _segments(self) -> AsyncIterator[Segment]:
        while True:
            segment, is_end = self._audio.take()
            if is_end:
                return
            if segment is not None:
                yield segment
            else:
                self._heard.clear()
                await self._heard.wait()

    async def _hear(self, segment: Segment, utterance: "_Utterance") -> None:
        """Transcribe a segment behind those before it."""
        delivery = self._service.delivery
        name = f"rt-{self._id}-{uuid4()}"
        source = f"realtime {segment.digest} {segment.num_samples}"
        job = await plan_stretch(self._service.model, utterance.ids, source, segment.duration_s, name)
        (prompt,) = job.prompts
        utterance.num_prompt_tokens = utterance.num_prompt_tokens or len(prompt.token_ids)
        if delivery.suspension.rejects_new:
            raise job.errors.paused()
        texts = _Texts(ReplySet(job, self._caller))
        stretch = SpokenStretch(texts, 0, prompt.generations[0])
        flying = asyncio.ensure_future(fly(delivery, texts.replies, [stretch], delivery.driver.clock()))
        flying.add_done_callback(lambda _: texts.queue.put_nowait(None))
        try:
            while (piece := await texts.queue.get()) is not None:
                text, num_new = piece
                utterance.text += text
                utterance.num_tokens += num_new
                await self._socket.send_str(delta(text))
            await flying
        finally:
            flying.cancel()
        if texts.error is not None:
            raise texts.error
        utterance.ids = [*prompt.token_ids, *prompt.generations[0].answer.token_ids]


class _Utterance:
    """Text, tokens and prompt of one utterance so far."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.num_prompt_tokens = 0
        self.num_tokens = 0


class _Texts:
    """The text of one segment on its way to the connection."""

    def __init__(self, replies: ReplySet) -> None:
        self.replies = replies
        self.queue: asyncio.Queue[tuple[str, int] | None] = asyncio.Queue()
        self.error: ApiError | None = None

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        """Take new text of the segment; an `ending` is that of the reply."""
        del number  # there is one segment
        if num_new:
            self.queue.put_nowait((text, num_new))
        if ending is not None:
            self.replies.resolve()

    def fail(self, error: ApiError) -> None:
        """End the segment with an error."""
        self.error = error
        self.replies.resolve()
