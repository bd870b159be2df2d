"""Completions of text and chat, in batches or of token ids."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from mockserve.planning.chat import plan_chat
from mockserve.planning.completions import plan_completion
from mockserve.planning.generate import plan_generate
from mockserve.planning.prompts import is_long_reply
from mockserve.protocol.completions.requests import READ_AS, ChatRequest, chats_of, parse_chat
from mockserve.protocol.errors import ApiError
from mockserve.protocol.generate import parse_generate
from mockserve.replies.frames import DONE, OTHER_ERRORS
from mockserve.replies.reply_set import ReplyJob
from mockserve.responding.answer import ASKED_BY, answer, load_headers, refuse
from mockserve.routes.shared import aside, check_rank, parsed, planned, read_body, reply_id, requested_priority
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.service import SERVICE
from mockserve.transport.clients import arrived_at


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    chat = await parsed(request, service.chats, body)
    adapter = service.model.check_model(chat.model)
    name = reply_id(request, "chatcmpl", chat.common.request_id)
    try:
        priority = requested_priority(request)
        plan = plan_chat(service.model, chat, body, name, adapter, priority)
        job = await planned(request, chat.sampling, plan)
        check_rank(request, service)
    except ApiError as error:
        return await refuse(request, error, chat.delivery.stream)
    headers = load_headers(request.headers.get(ASKED_BY), service.delivery.driver.engine)
    return await answer(request, service.delivery, job, arrived, headers)


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    asked = await parsed(request, service.completions, body)
    adapter = service.model.check_model(asked.model)
    name = reply_id(request, "cmpl", asked.common.request_id)
    try:
        priority = requested_priority(request)
        plan = plan_completion(service.model, asked, body, name, adapter, priority)
        job = await planned(request, asked.sampling, plan)
        check_rank(request, service)
    except ApiError as error:
        return await refuse(request, error, asked.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    headers = load_headers(request.headers.get(ASKED_BY), service.delivery.driver.engine)
    return await answer(request, service.delivery, job, arrived, headers)


async def batch_chat(request: web.Request) -> web.StreamResponse:
    """Answer each conversation with one choice."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    asked = await aside(request, _asked, body)
    adapter = service.model.check_model(asked[0][0].model)
    name = reply_id(request, "chatcmpl", asked[0][0].common.request_id)
    sampling = replace(asked[0][0].sampling, n=len(asked))  # one answer for each conversation
    plan = _planned(service.model, asked, name, adapter, requested_priority(request))
    job = await planned(request, sampling, plan)
    check_rank(request, service)
    return await answer(request, service.delivery, job, arrived)


def _asked(body: dict[str, Any]) -> list[tuple[ChatRequest, dict[str, Any]]]:
    """The request of each conversation, and its body alone."""
    return [(parse_chat(each, read_as=READ_AS), each) for each in chats_of(body)]


async def _planned(
    model: ServedModel,
    asked: Sequence[tuple[ChatRequest, dict[str, Any]]],
    name: str,
    adapter: Adapter | None,
    priority: int | None,
) -> ReplyJob:
    """Return one reply with a prompt for each conversation."""
    count = len(asked)
    jobs = [
        await plan_chat(model, chat, body, name, adapter, priority, refuses_unavailable=False, num_prompts=count)
        for chat, body in asked
    ]
    accounting = jobs[0].accounting._replace(counts_reasoning=False, shows_prompt_details=False)
    prompts = [each.prompts[0] for each in jobs]
    is_long = is_long_reply(asked[0][0].sampling, prompts, repeats_prompts=False)
    return jobs[0]._replace(prompts=prompts, accounting=accounting, is_long=is_long)


async def generate(request: web.Request) -> web.StreamResponse:
    """Continue token ids, and answer with token ids."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    asked = await aside(request, parse_generate, body)
    adapter = service.model.check_model(asked.model)
    name = reply_id(request, "generate-tokens", asked.common.request_id)
    try:
        plan = plan_generate(service.model, asked, name, adapter, requested_priority(request))
        job = await planned(request, asked.sampling, plan)
        check_rank(request, service)
    except ApiError as error:
        return await refuse(request, error, asked.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    return await answer(request, service.delivery, job, arrived)
