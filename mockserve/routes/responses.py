"""POST /v1/responses, and what can be asked about a response later."""

from collections.abc import AsyncIterator
from dataclasses import replace

from aiohttp import web

from engine.units import Micros
from mockserve.answering.answer import collect
from mockserve.answering.narrating import narrate, narrate_to_client
from mockserve.answering.outlet import EventOutlet
from mockserve.connections.caller import ANYBODY, Caller, caller_of
from mockserve.connections.stamped import arrived_at
from mockserve.planning.responses import ResponsePlan, conversation, plan_response, response_id
from mockserve.protocol.errors import ApiError
from mockserve.protocol.narration import Event
from mockserve.protocol.reading.query import QueryFields
from mockserve.protocol.responses.events import ResponseEvents
from mockserve.protocol.responses.requests import ResponseRequest, chat_body, parse_response
from mockserve.replies.frames import named_event
from mockserve.replies.identity import new_id
from mockserve.replies.reply_set import ReplySet
from mockserve.routes.render import rendered_chat
from mockserve.routes.shared import check_rank, json_reply, read_body, wanted_priority
from mockserve.serving.response_store import StoredResponse, no_background
from mockserve.serving.service import SERVICE, Service


async def create_response(request: web.Request) -> web.StreamResponse:
    """Make a response: at once or in the background, whole or as a stream."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = parse_response(body)
    service.check_model(asked.model)
    if asked.in_background and not service.responses.is_enabled:
        raise no_background()
    plan = await plan_response(service, asked, wanted_priority(request))
    check_rank(request, service)
    if asked.in_background:
        stored = _start(service, plan, asked, arrived)
        return await _told(request, stored.events_after(None)) if asked.streams else json_reply(stored.body)
    if asked.streams:
        narrator = _narrator(plan)
        response = await narrate_to_client(request, service, plan.job, narrator, arrived)
        _keep(service, asked, StoredResponse(narrator.final or plan.response.body("failed"), plan.messages))
        return response
    stored = StoredResponse(await _whole(service, plan, arrived, caller_of(request)), plan.messages)
    _keep(service, asked, stored)
    return json_reply(stored.body)


async def render_response(request: web.Request) -> web.StreamResponse:
    """The prompt of a response as a request for token ids."""
    service = request.app[SERVICE]
    asked = parse_response(await read_body(request))
    if asked.body.get("previous_response_id") is not None:
        message = "previous_response_id is not supported by the stateless render endpoint."
        raise ApiError(message, kind="invalid_request_error", param="previous_response_id")
    body = chat_body(asked, conversation(service, asked))
    if not any(asked.body.get(each) for each in ("kv_transfer_params", "ec_transfer_params")):
        body["vllm_xargs"] = body.get("vllm_xargs") or {}
    name = response_id(asked)
    rendered = await rendered_chat(service, body, name, refuses_tools=False)
    shown = replace(
        rendered,
        body={**rendered.body, "model": asked.body.get("model")},
        # A response is not read from token ids later on, so that nothing is said of how to read it.
        reasoning_ended=None,
        parse_context=None,
    )
    return json_reply(shown.as_json())


async def get_response(request: web.Request) -> web.StreamResponse:
    """A response as it is by now, or its events."""
    service = request.app[SERVICE]
    query = QueryFields(request.query)
    starting_after, streams = query.number("starting_after"), query.flag("stream", False)
    query.check()
    stored = service.responses.find(request.match_info["response_id"])
    return await _told(request, stored.events_after(starting_after)) if streams else json_reply(stored.body)


async def cancel_response(request: web.Request) -> web.StreamResponse:
    """Stop a response that is made in the background."""
    stored = request.app[SERVICE].responses.find(request.match_info["response_id"])
    stored.cancel()
    return json_reply(stored.body)


def _start(service: Service, plan: ResponsePlan, asked: ResponseRequest, arrived: Micros) -> StoredResponse:
    stored = StoredResponse(plan.response.body("queued"), plan.messages, [] if asked.streams else None)
    _keep(service, asked, stored)
    making = _make_stream(service, plan, stored, arrived) if asked.streams else _make(service, plan, stored, arrived)
    stored.make(making)
    return stored


async def _make(service: Service, plan: ResponsePlan, stored: StoredResponse, arrived: Micros) -> None:
    try:
        stored.body = await _whole(service, plan, arrived)
    except ApiError:
        stored.body = {**stored.body, "status": "failed"}


async def _make_stream(service: Service, plan: ResponsePlan, stored: StoredResponse, arrived: Micros) -> None:
    narrator = _narrator(plan)
    with service.answering:
        await narrate(service, ReplySet(plan.job), narrator, stored.add_event, arrived)
    stored.body = narrator.final or stored.body


async def _whole(service: Service, plan: ResponsePlan, arrived: Micros, caller: Caller = ANYBODY) -> dict[str, object]:
    replies, choices = await collect(service, plan.job, arrived, caller)
    return plan.whole(choices[0], replies.usage(is_stream=False), replies.metrics(is_stream=False))


def _narrator(plan: ResponsePlan) -> ResponseEvents:
    return ResponseEvents(plan.response, new_id, plan.raw)


def _keep(service: Service, asked: ResponseRequest, stored: StoredResponse) -> None:
    if asked.stores:
        service.responses.keep(stored)


async def _told(request: web.Request, events: AsyncIterator[Event]) -> web.StreamResponse:
    async with EventOutlet(request) as outlet:
        async for each in events:
            outlet.send(named_event(each))
    return outlet.response
