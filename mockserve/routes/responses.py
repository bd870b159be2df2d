"""POST /v1/responses, and retrieval and cancellation of stored responses."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aiohttp import web

from blis_sim.engine.units import Micros
from mockserve.http.connection import arrived_at
from mockserve.http.headers import UNKNOWN_CALLER, Caller, caller_of
from mockserve.protocol.bodies import Event, Usage
from mockserve.protocol.errors import ApiError
from mockserve.protocol.forms import QueryFields
from mockserve.protocol.responses import (
    ResponseEvents,
    ResponseObject,
    ResponseRequest,
    chat_body,
    item_forms,
    parse_response,
)
from mockserve.realtime.in_flight import new_id
from mockserve.reply.frames import named_event
from mockserve.reply.reply import ReplyDelivery, collect
from mockserve.reply.stream import SSEWriter, json_body
from mockserve.reply.typed_events import EncodedReply, StreamAbortedError, stream_to_client
from mockserve.routes.render import keeps_special_tokens, rendered_chat
from mockserve.routes.shared import (
    GENERATES,
    check_rank,
    is_long,
    json_reply,
    offload,
    read_body,
    requested_priority,
    run_single_plan,
)
from mockserve.serving.response_store import NoEventsError, StoredResponse, no_background, two_predecessors
from mockserve.serving.responses import RefusedStreamError, ResponsePlan, conversation, plan_response, response_id
from mockserve.serving.service import SERVICE, Service

item_forms()  # reads a file, which must not happen in a request: a thread loads this module

ITEM_KINDS = 10
"""Minimum number of types that each input item of a response is validated against."""


async def create_response(request: web.Request) -> web.StreamResponse:
    """Create a response: in the foreground or background, complete or as a stream."""
    request[GENERATES] = True
    service = request.app[SERVICE]
    body = await read_body(request, num_item_kinds=ITEM_KINDS)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await offload(request, parse_response, body)
    service.model.check_model(api_request.model)
    if api_request.in_background and not service.responses.is_enabled:
        raise no_background()
    if body.get("previous_input_messages") and body.get("previous_response_id"):
        raise two_predecessors()
    planned = plan_response(service.model, service.responses, api_request, requested_priority(request))
    try:
        plan = await run_single_plan(request, body, planned)
    except RefusedStreamError as refused:
        return await _broken_off(request, refused.response)
    check_rank(request, service, plan.job)
    if api_request.in_background:
        stored = _start_background(service, plan, api_request, arrived)
        return (
            await _send_stored(request, stored.events_after(None)) if api_request.streams else json_reply(stored.body)
        )
    if api_request.streams:
        encoder = _event_encoder(plan)
        response = await stream_to_client(request, service.delivery, plan.job, encoder, arrived)
        stored = StoredResponse(encoder.final or plan.response.body("failed"), plan.messages)
        await _keep_counted(service, api_request, stored, plan.job.is_long or is_long(request))
        return response
    stored = StoredResponse(await _whole_response(service.delivery, plan, arrived, caller_of(request)), plan.messages)
    await _keep_counted(service, api_request, stored, plan.job.is_long)
    return await json_body(request, lambda: stored.body, plan.job.is_long or is_long(request))


async def _broken_off(request: web.Request, response: ResponseObject) -> web.StreamResponse:
    """Begin the stream of a response that the engine refuses, then close the connection, as vLLM does."""
    async with SSEWriter(request) as writer:
        for each in ResponseEvents(response, new_id).opening(Usage(0, 0)):
            writer.send(named_event(each))
        writer.break_off()
    return writer.response


async def render_response(request: web.Request) -> web.StreamResponse:
    """The prompt of a response as a request for token ids."""
    service = request.app[SERVICE]
    body = await read_body(request, num_item_kinds=ITEM_KINDS)
    return await json_body(request, await offload(request, _rendered_response, service, body), is_long(request))


def _rendered_response(service: Service, given: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    api_request = parse_response(given)
    if api_request.body.get("previous_response_id") is not None:
        message = "previous_response_id is not supported by the stateless render endpoint."
        raise ApiError(message, kind="invalid_request_error", param="previous_response_id")
    service.model.check_model(api_request.model)
    body = chat_body(api_request, conversation(service.responses, api_request))
    name = response_id(api_request)
    has_tools = api_request.body.get("tools") and api_request.body.get("tool_choice") != "none"
    if has_tools and keeps_special_tokens(service.model.options.content.tools):
        body["skip_special_tokens"] = False
    rendered = rendered_chat(service.model, body, name, is_response=True)
    shown = replace(
        rendered,
        body={**rendered.body, "model": api_request.body.get("model")},
        # Responses are never derendered from token ids, so they have no parse context.
        reasoning_ended=None,
        parse_context=None,
    )
    return shown.as_json


async def get_response(request: web.Request) -> web.StreamResponse:
    """The present state of a response, or its events."""
    service = request.app[SERVICE]
    query = QueryFields(request.query)
    starting_after, streams = query.number("starting_after"), query.flag("stream", False)
    query.check()
    stored = service.responses.find(request.match_info["response_id"])
    return await _send_stored(request, stored.events_after(starting_after)) if streams else json_reply(stored.body)


async def cancel_response(request: web.Request) -> web.StreamResponse:
    """Cancel a background response."""
    stored = request.app[SERVICE].responses.find(request.match_info["response_id"])
    stored.cancel()
    return json_reply(stored.body)


def _start_background(
    service: Service, plan: ResponsePlan, api_request: ResponseRequest, arrived: Micros
) -> StoredResponse:
    stored = StoredResponse(plan.response.body("queued"), plan.messages, [] if api_request.streams else None)
    _store_response(service, api_request, stored)
    making = (
        _make_stream(service.delivery, plan, stored, arrived)
        if api_request.streams
        else _make_background(service.delivery, plan, stored, arrived)
    )
    stored.make(making)
    return stored


async def _make_background(
    delivery: ReplyDelivery, plan: ResponsePlan, stored: StoredResponse, arrived: Micros
) -> None:
    try:
        stored.set_body(await _whole_response(delivery, plan, arrived))
    except ApiError:
        stored.set_body({**stored.body, "status": "failed"})


async def _make_stream(delivery: ReplyDelivery, plan: ResponsePlan, stored: StoredResponse, arrived: Micros) -> None:
    encoder = _event_encoder(plan)
    with delivery.open_replies, suppress(StreamAbortedError):
        await EncodedReply(delivery, plan.job, arrived, encoder, stored.add_event).run()
    stored.set_body(encoder.final or plan.response.body("failed"))


async def _whole_response(
    delivery: ReplyDelivery, plan: ResponsePlan, arrived: Micros, caller: Caller = UNKNOWN_CALLER
) -> dict[str, object]:
    reply, choices = await collect(delivery, plan.job, arrived, caller)
    usage, metrics = reply.usage(is_stream=False), reply.metrics(is_stream=False)
    if plan.job.is_long:
        return await delivery.executor.run(True, lambda: plan.whole(choices[0], usage, metrics))
    return plan.whole(choices[0], usage, metrics)


def _event_encoder(plan: ResponsePlan) -> ResponseEvents:
    return ResponseEvents(plan.response, new_id, plan.raw)


def _store_response(service: Service, api_request: ResponseRequest, stored: StoredResponse) -> None:
    if api_request.stores:
        service.responses.keep(stored)


async def _keep_counted(service: Service, api_request: ResponseRequest, stored: StoredResponse, is_long: bool) -> None:
    """Store a response after counting its bytes, which takes long for a large response."""
    if is_long and api_request.stores and service.responses.is_enabled:
        await service.delivery.executor.run(True, stored.count)
    _store_response(service, api_request, stored)


async def _send_stored(request: web.Request, events: AsyncIterator[Event]) -> web.StreamResponse:
    """Send stored events; as in vLLM, the stream of a response without stored events begins and is cut."""
    async with SSEWriter(request) as writer:
        try:
            async for each in events:
                writer.send(named_event(each))
        except NoEventsError:
            writer.break_off()
    return writer.response
