"""POST /v1/chat/completions/batch: several conversations, answered together in one reply."""

from aiohttp import web

from mockserve.answering.answer import answer
from mockserve.connections.stamped import arrived_at
from mockserve.planning.chat import plan_chat
from mockserve.protocol.completions.batch import chats_of
from mockserve.protocol.completions.chat import parse_chat
from mockserve.routes.shared import check_rank, read_body, reply_id, wanted_priority
from mockserve.serving.service import SERVICE


async def batch_chat(request: web.Request) -> web.StreamResponse:
    """Answer each conversation with one choice."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = chats_of(body)
    chats = [parse_chat(each) for each in asked]
    adapter = service.check_model(chats[0].model)
    name = reply_id(request, "chatcmpl", chats[0].common.request_id)
    priority = wanted_priority(request)
    jobs = [
        await plan_chat(service, chat, each, name, adapter, priority, refuses_unavailable=False)
        for chat, each in zip(chats, asked, strict=True)
    ]
    check_rank(request, service)
    accounting = jobs[0].accounting._replace(counts_reasoning=False, shows_prompt_details=False)
    job = jobs[0]._replace(prompts=[each.prompts[0] for each in jobs], accounting=accounting)
    return await answer(request, service, job, arrived)
