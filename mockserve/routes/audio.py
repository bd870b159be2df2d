"""POST /v1/audio/transcriptions and /v1/audio/translations."""

import asyncio
from typing import Any

from aiohttp import hdrs, web

from blis_sim.engine.units import Micros
from mockserve.in_flight_request import unix_time
from mockserve.planning.speech import SpeechPlan, plan_speech
from mockserve.protocol.errors import bad_value
from mockserve.protocol.reading.forms import form_reader
from mockserve.protocol.speech import (
    GRANULARITIES,
    TRANSCRIBE,
    TRANSLATE,
    Speech,
    SpeechChunks,
    SpeechRequest,
    check_speech,
    parse_speech,
    whole_speech,
)
from mockserve.replies.frames import DONE, event
from mockserve.replies.reply_set import ReplySet
from mockserve.responding.answer import collect, fly
from mockserve.responding.event_streams import SpokenStream
from mockserve.responding.sse_writer import EventOutlet
from mockserve.routes.shared import json_reply, received, reply_id
from mockserve.serving.service import SERVICE, ReplyDelivery
from mockserve.transport.clients import Caller, arrived_at, caller_of

MAX_FILE_BYTES = 25 * 2**20
PIECE_BYTES = 64 * 1024
"""Bytes of a form that are read at once."""


async def transcribe(request: web.Request) -> web.StreamResponse:
    """Transcribe a recording."""
    return await _answer(request, TRANSCRIBE)


async def translate(request: web.Request) -> web.StreamResponse:
    """Translate a recording into English."""
    return await _answer(request, TRANSLATE)


async def _answer(request: web.Request, speech: Speech) -> web.StreamResponse:
    service = request.app[SERVICE]
    form = await _form(request)
    arrived = arrived_at(request, service.delivery.driver)
    asked = parse_speech(form, speech)
    recording = bytes(form["file"].data)
    if len(recording) > MAX_FILE_BYTES:
        raise bad_value("Maximum file size exceeded", "audio_filesize_mb", len(recording) / 2**20)
    adapter = service.model.check_model(asked.model)
    model = service.model.reply_name(adapter)
    check_speech(asked, model)
    name = reply_id(request, speech.verb, None)
    plan = await plan_speech(service.model, asked, speech, recording, name, adapter)
    if asked.streams:
        chunks = SpeechChunks(id=name, created=unix_time(), model=model, speech=speech)
        return await _stream(request, service.delivery, asked, plan, chunks, arrived)
    _, choices = await collect(service.delivery, plan.job, arrived, _traced(request))
    return json_reply(whole_speech(asked, speech, plan.spoken(list(choices)), plan.duration_s))


async def _form(request: web.Request) -> dict[str, Any]:
    """The fields of a form; the last of several with one name, but for those that are lists."""
    reader = form_reader(request.headers.get(hdrs.CONTENT_TYPE, ""))
    if reader is None:
        return {}
    body = await received(request)
    for begin in range(0, len(body), PIECE_BYTES):
        reader.write(body[begin : begin + PIECE_BYTES])
        await asyncio.sleep(0)  # other replies go on meanwhile
    reader.finish()
    form: dict[str, Any] = dict(reader.items)
    if GRANULARITIES in form:
        form[GRANULARITIES] = [value for name, value in reader.items if name == GRANULARITIES]
    return form


async def _stream(
    request: web.Request,
    delivery: ReplyDelivery,
    asked: SpeechRequest,
    plan: SpeechPlan,
    chunks: SpeechChunks,
    arrived: Micros,
) -> web.StreamResponse:
    replies = ReplySet(plan.job, _traced(request))
    with delivery.open_replies:
        async with EventOutlet(request) as outlet:
            stream = SpokenStream(replies, plan, asked, chunks, lambda chunk: outlet.send(event(chunk)))
            if delivery.suspension.rejects_new:
                stream.fail(plan.job.errors.paused())
            else:
                await fly(delivery, replies, stream.replies(), arrived)
            outlet.send(DONE)
        return outlet.response


def _traced(request: web.Request) -> Caller:
    """The trace context of a client; vLLM's speech routes read no other header about the caller."""
    caller = caller_of(request)
    return Caller(traceparent=caller.traceparent, tracestate=caller.tracestate)
