"""From planned generations to an HTTP reply: submit them, deliver what comes, and free them when the client leaves."""

from collections.abc import Sequence
from contextlib import suppress

from aiohttp import HttpVersion11, web

from engine.units import Micros
from mockserve.flight import Reply, Siblings, new_siblings
from mockserve.generation import Generation
from mockserve.protocol.bodies import Bodies
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.stream_options import Delivery
from mockserve.replies import CollectedChoice, EventStream, ReplySet, StreamedChoice
from mockserve.service import Service

EVENT_STREAM = "text/event-stream; charset=utf-8"


async def answer(
    request: web.Request,
    service: Service,
    bodies: Bodies,
    delivery: Delivery,
    prompts: Sequence[Sequence[Generation]],
    arrived_at: Micros,
) -> web.StreamResponse:
    """Reply to `request` with the choices of each prompt, numbered prompt by prompt.

    `arrived_at` is when the request came in on the driver's clock, so that reading it costs no simulated time.
    """
    generations = [each for choices in prompts for each in choices]
    service.check_queue(len(generations))
    replies = ReplySet(generations, sum(choices[0].request.input_tokens for choices in prompts))
    siblings = [each for choices in prompts for each in [new_siblings(len(choices))] * len(choices)]
    with service.answering():
        if delivery.stream:
            return await _stream(request, service, bodies, delivery, replies, siblings, arrived_at)
        return await _collect(service, bodies, replies, siblings, arrived_at)


async def _collect(
    service: Service, bodies: Bodies, replies: ReplySet, siblings: Sequence[Siblings], arrived_at: Micros
) -> web.StreamResponse:
    choices = [CollectedChoice(replies, each) for each in replies.generations]
    await _run(service, replies, choices, siblings, arrived_at)
    whole = bodies.whole([each.choice for each in choices if each.choice is not None], replies.usage)
    return web.Response(body=compact_json(whole), content_type="application/json")


async def _stream(
    request: web.Request,
    service: Service,
    bodies: Bodies,
    delivery: Delivery,
    replies: ReplySet,
    siblings: Sequence[Siblings],
    arrived_at: Micros,
) -> web.StreamResponse:
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

    stream = EventStream(replies, bodies, delivery, write, chunked)
    choices = [StreamedChoice(stream, each, index) for index, each in enumerate(replies.generations)]
    await _run(service, replies, choices, siblings, arrived_at)
    with suppress(ConnectionResetError):  # a client may leave as soon as it has the last event
        await response.write_eof()
    return response


async def _run(
    service: Service, replies: ReplySet, choices: Sequence[Reply], siblings: Sequence[Siblings], arrived_at: Micros
) -> None:
    """Submit every choice and wait for the last. Whatever ends the wait, what is still in the engine is freed."""
    driver = service.driver
    try:
        for generation, choice, group in zip(replies.generations, choices, siblings, strict=True):
            driver.submit(generation.request, choice, arrived_at, group)
        await replies.done
    finally:
        replies.done.cancel()
        for generation in replies.generations:
            driver.abort(generation.request.id)
