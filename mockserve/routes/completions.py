"""Completions of text and chat."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from mockserve.http.connection import arrived_at
from mockserve.protocol.completions import PYDANTIC_CLASS, ChatBodies, ChatRequest, chat_bodies_of, parse_chat
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import MOST_VALUE_BYTES, too_large
from mockserve.reply.frames import DONE, OTHER_ERRORS
from mockserve.reply.pictures import SEND_HEADER
from mockserve.reply.reply import PlannedPrompt, ReplyJob
from mockserve.reply.stream import FORMAT_HEADER, answer, load_headers, refuse
from mockserve.routes.shared import (
    GENERATES,
    offload,
    parsed,
    read_body,
    reply_id,
    requested_priority,
    run_plan,
)
from mockserve.serving.chat import plan_chat
from mockserve.serving.completions import plan_completion
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import is_long_reply
from mockserve.serving.service import SERVICE


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    request[GENERATES] = True
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    chat = await parsed(request, service.chats, body)
    adapter = None if chat.model in service.model.names else service.model.check_model(chat.model)
    name = reply_id(request, "chatcmpl", chat.common.request_id)
    try:
        priority = requested_priority(request)
        plan = plan_chat(service.model, chat, name, adapter, priority)
        job = await run_plan(request, chat.sampling, plan)
    except ApiError as error:
        return await refuse(request, error, chat.delivery.stream)
    load_format = request.headers.get(FORMAT_HEADER)
    headers = load_headers(load_format, service.delivery.driver.engine) if load_format else None
    pictures, is_short = service.pictures, not job.is_long and not job.is_empty
    if pictures.options.omni and is_short and pictures.is_wanted(request.headers.get(SEND_HEADER)):
        job = service.pictures.job_of(job)
        with service.delivery.open_replies:
            await asyncio.sleep(service.pictures.time_s())
    return await answer(request, service.delivery, job, arrived, headers, chat.common.cache_hit_threshold)


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts."""
    request[GENERATES] = True
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await parsed(request, service.completions, body)
    known_name = api_request.model in service.model.names
    adapter = None if known_name else service.model.check_model(api_request.model)
    name = reply_id(request, "cmpl", api_request.common.request_id)
    try:
        priority = requested_priority(request)
        plan = plan_completion(service.model, api_request, name, adapter, priority)
        job = await run_plan(request, api_request.sampling, plan, len(api_request.prompts))
    except ApiError as error:
        return await refuse(request, error, api_request.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    load_format = request.headers.get(FORMAT_HEADER)
    headers = load_headers(load_format, service.delivery.driver.engine) if load_format else None
    return await answer(request, service.delivery, job, arrived, headers, api_request.common.cache_hit_threshold)


async def batch_chat(request: web.Request) -> web.StreamResponse:
    """Answer several conversations, each with one choice."""
    request[GENERATES] = True
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await offload(request, _chat_requests, body)
    adapter = service.model.check_model(api_request[0].model)
    name = reply_id(request, "chatcmpl", api_request[0].common.request_id)
    sampling = replace(api_request[0].sampling, n=len(api_request))  # one answer for each conversation
    plan = _planned_batch(service.model, api_request, name, adapter, requested_priority(request))
    job = await run_plan(request, sampling, plan)
    return await answer(request, service.delivery, job, arrived)


_CONVERSATION_BYTES = 4096
"""Memory of a short conversation of a batch with its plan."""


def _chat_requests(body: dict[str, Any]) -> list[ChatRequest]:
    """Return the parsed request of each conversation. Raises ApiError."""
    conversations = body.get("messages")
    if isinstance(conversations, list) and len(conversations) * _CONVERSATION_BYTES > MOST_VALUE_BYTES:
        raise too_large()
    return [parse_chat(each, pydantic_class=PYDANTIC_CLASS) for each in chat_bodies_of(body)]


async def _planned_batch(
    model: ServedModel,
    api_request: Sequence[ChatRequest],
    name: str,
    adapter: Adapter | None,
    priority: int | None,
) -> ReplyJob:
    """Return one reply with a prompt for each conversation."""
    count = len(api_request)
    first: ReplyJob | None = None
    prompts: list[PlannedPrompt] = []
    for chat in api_request:
        job = await plan_chat(model, chat, name, adapter, priority, num_prompts=count)
        first = first or job
        prompts += [each._replace(scores=None) for each in job.prompts]
    assert first is not None
    accounting = first.accounting._replace(counts_reasoning=False, shows_prompt_details=False)
    model.queue.check_each(len(each.token_ids) for each in prompts)
    is_long = is_long_reply(api_request[0].sampling, prompts, repeats_prompts=False)
    assert isinstance(first.bodies, ChatBodies)
    bodies = first.bodies._replace(shows_prompt_ids=False)
    return first._replace(bodies=bodies, prompts=prompts, accounting=accounting, is_long=is_long)
