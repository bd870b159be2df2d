"""From a planned reply to an HTTP response: submit it, deliver what comes, and free it when the client leaves."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from aiohttp import HttpVersion11, web

from engine.units import Micros
from mockserve.connection import wanted_rank
from mockserve.flight import Reply, new_siblings
from mockserve.protocol.json_text import compact_json
from mockserve.replies import CollectedChoice, EventStream, ReplySet, StreamedChoice
from mockserve.reply_job import ReplyJob
from mockserve.service import Service

EVENT_STREAM = "text/event-stream; charset=utf-8"


async def answer(
    request: web.Request,
    service: Service,
    job: ReplyJob,
    arrived_at: Micros,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Reply to `request`. `headers` are for a whole reply.

    `arrived_at` is when the request came in on the driver's clock, so that reading it costs no simulated time.
    """
    replies = ReplySet(job, wanted_rank(request))
    with service.answering():
        if job.delivery.stream:
            return await _stream(request, service, replies, arrived_at)
        return await _collect(service, replies, arrived_at, headers or {})


async def _collect(
    service: Service, replies: ReplySet, arrived_at: Micros, headers: Mapping[str, str]
) -> web.StreamResponse:
    job = replies.job
    choices = [
        CollectedChoice(replies, job.new_writer(prompt, each), each)
        for prompt in job.prompts
        for each in prompt.generations
    ]
    await _run(service, replies, choices, arrived_at)
    finished = [each.choice for each in choices if each.choice is not None]
    whole = job.bodies.whole(finished, replies.usage(is_stream=False), replies.metrics(is_stream=False))
    return web.Response(body=compact_json(whole), content_type="application/json", headers=headers)


async def _stream(request: web.Request, service: Service, replies: ReplySet, arrived_at: Micros) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    chunked = request.version >= HttpVersion11
    if chunked:
        response.enable_chunked_encoding()
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client left before the first token")

    def write(data: bytes) -> None:
        # Straight to the transport: one event per write, and none to a client that has gone.
        if not transport.is_closing():
            transport.write(data)

    job = replies.job
    stream = EventStream(replies, write, chunked)
    choices: list[StreamedChoice] = []
    for prompt in job.prompts:
        for number, generation in enumerate(prompt.generations):
            writer = job.new_writer(prompt, generation)
            choices.append(StreamedChoice(stream, writer, prompt, number, len(choices)))
    await _run(service, replies, choices, arrived_at)
    with suppress(ConnectionResetError):  # a client may leave as soon as it has the last event
        await response.write_eof()
    return response


async def _run(service: Service, replies: ReplySet, choices: Sequence[Reply], arrived_at: Micros) -> None:
    """Submit every choice and wait for the last. Whatever ends the wait, what is still in the engine is freed."""
    driver = service.driver
    requests = [each.request for prompt in replies.job.prompts for each in prompt.generations]
    waiting = iter(choices)
    try:
        for prompt in replies.job.prompts:
            siblings = new_siblings(len(prompt.generations))
            for generation in prompt.generations:
                flight = driver.submit(generation.request, next(waiting), arrived_at, siblings, replies.rank)
                replies.add_flight(flight)
        await replies.done
    finally:
        replies.done.cancel()
        for engine_request in requests:
            driver.abort(engine_request.id)
