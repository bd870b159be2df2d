"""POST /v1/chat/completions/batch: several conversations, answered together in one reply."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from mockserve.answering.answer import answer
from mockserve.connections.stamped import arrived_at
from mockserve.planning.chat import plan_chat
from mockserve.planning.reply_settings import is_long_reply
from mockserve.protocol.completions.batch import chats_of
from mockserve.protocol.completions.chat import ChatRequest, parse_chat
from mockserve.replies.job import ReplyJob
from mockserve.routes.shared import aside, check_rank, planned, read_body, reply_id, wanted_priority
from mockserve.serving.adapters import Adapter
from mockserve.serving.service import SERVICE, Service


async def batch_chat(request: web.Request) -> web.StreamResponse:
    """Answer each conversation with one choice."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = await aside(request, _asked, body)
    adapter = service.check_model(asked[0][0].model)
    name = reply_id(request, "chatcmpl", asked[0][0].common.request_id)
    sampling = replace(asked[0][0].sampling, n=len(asked))  # one answer for each conversation
    plan = _planned(service, asked, name, adapter, wanted_priority(request))
    job = await planned(request, sampling, plan)
    check_rank(request, service)
    return await answer(request, service, job, arrived)


def _asked(body: dict[str, Any]) -> list[tuple[ChatRequest, dict[str, Any]]]:
    """What is asked in each conversation, and the body that asks for it alone."""
    return [(parse_chat(each, read_as="ChatCompletionRequest"), each) for each in chats_of(body)]


async def _planned(
    service: Service,
    asked: Sequence[tuple[ChatRequest, dict[str, Any]]],
    name: str,
    adapter: Adapter | None,
    priority: int | None,
) -> ReplyJob:
    """One reply with a prompt for each conversation."""
    count = len(asked)
    jobs = [
        await plan_chat(service, chat, body, name, adapter, priority, refuses_unavailable=False, num_prompts=count)
        for chat, body in asked
    ]
    accounting = jobs[0].accounting._replace(counts_reasoning=False, shows_prompt_details=False)
    prompts = [each.prompts[0] for each in jobs]
    is_long = is_long_reply(asked[0][0].sampling, prompts, repeats_prompts=False)
    return jobs[0]._replace(prompts=prompts, accounting=accounting, is_long=is_long)
