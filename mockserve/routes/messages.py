"""POST /v1/messages and related routes: conversations in the format of Anthropic's API."""

from dataclasses import replace
from json import JSONDecodeError
from typing import Any
from uuid import uuid4

from aiohttp import web

from mockserve.http.connection import arrived_at
from mockserve.http.headers import caller_of
from mockserve.protocol.anthropic import (
    AnthropicCountTokensRequest,
    AnthropicEvents,
    AnthropicMessagesRequest,
    AnthropicReply,
    Conversation,
    chat_body,
    message,
)
from mockserve.protocol.completions import ChatRequest, parse_chat
from mockserve.protocol.errors import ApiError, anthropic_error
from mockserve.protocol.sampling import refuse_unavailable
from mockserve.reply.frames import named_event
from mockserve.reply.reply import collect
from mockserve.reply.stream import json_body, refuse
from mockserve.reply.typed_events import stream_to_client
from mockserve.routes.render import rendered_chat
from mockserve.routes.shared import (
    GENERATES,
    is_long,
    json_reply,
    offload,
    read_model,
    reply_id,
    requested_priority,
    run_plan,
)
from mockserve.serving.chat import conversation_ids, media_in, plan_chat
from mockserve.serving.model import ServedModel
from mockserve.serving.service import SERVICE, Service


async def messages(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    request[GENERATES] = True
    service = request.app[SERVICE]
    body = await read_model(request, AnthropicMessagesRequest)
    arrived = arrived_at(request, service.delivery.driver)
    try:
        chat = await offload(request, _chat_request, service, body)
        adapter = service.model.check_model(chat.model)
        name = reply_id(request, "chatcmpl", None)
        priority = requested_priority(request)
        plan = plan_chat(service.model, chat, name, adapter, priority)
        job = await run_plan(request, chat.sampling, plan)
        reply = AnthropicReply(name, service.model.reply_name(adapter), lambda: uuid4().hex)
        if job.delivery.stream:
            return await stream_to_client(request, service.delivery, job, AnthropicEvents(reply), arrived)
        reply_, choices = await collect(service.delivery, job, arrived, caller_of(request))
    except ApiError as error:
        refusal = anthropic_error(error)
        return await refuse(request, refusal, bool(body.stream), [named_event(refusal.body())])
    usage = reply_.usage(is_stream=False)

    def whole() -> dict[str, Any]:
        try:
            return message(reply, choices[0], usage)
        except JSONDecodeError as error:  # arguments of a call that was cut short
            raise anthropic_error(ApiError(str(error))) from None

    return await json_body(request, whole, job.is_long)


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """Number of tokens of a conversation."""
    service = request.app[SERVICE]
    body = await read_model(request, AnthropicCountTokensRequest)
    try:
        count = await offload(request, _num_tokens, service.model, body)
    except ApiError as error:
        raise anthropic_error(error) from None
    return json_reply({"input_tokens": count, "context_management": {"original_input_tokens": count}})


async def render_messages(request: web.Request) -> web.StreamResponse:
    """A conversation as a request for token ids."""
    service = request.app[SERVICE]
    body = await read_model(request, AnthropicMessagesRequest)
    name = reply_id(request, "chatcmpl", None)
    chat = await offload(request, _chat_body, service, body)
    rendered = await offload(request, rendered_chat, service.model, chat, name)
    if not body.tools and rendered.parse_context is not None:
        rendered = replace(rendered, parse_context={**rendered.parse_context, "tool_choice": None})
    return await json_body(request, rendered.as_json, is_long(request))


def _chat_request(service: Service, body: Conversation) -> ChatRequest:
    """Return the equivalent chat request."""
    return parse_chat(_chat_body(service, body), is_typed=False)


def _chat_body(service: Service, body: Conversation) -> dict[str, Any]:
    return chat_body(body, can_call_tools=service.model.answers.calls_tools)


def _num_tokens(model: ServedModel, body: Conversation) -> int:
    api_request = chat_body(body, model.answers.calls_tools)
    chat = parse_chat(api_request, is_typed=False)
    model.check_model(chat.model)
    refuse_unavailable(api_request, model.answers.calls_tools)
    text = model.planner.conversations.prompt(api_request)
    media, tokens_per_medium = media_in(model, chat.messages), model.options.replies.tokens_per_medium
    return len(conversation_ids(model.planner, text, media, tokens_per_medium, False, chat.sampling))
