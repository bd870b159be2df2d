"""POST /v1/chat/completions."""

from aiohttp import web

from mockserve.answering import answer
from mockserve.connection import arrived_at
from mockserve.content.asking import chat_form
from mockserve.protocol.chat import parse_chat
from mockserve.protocol.chat_bodies import ChatBodies
from mockserve.protocol.refusals import refuse_bad_bias, refuse_unavailable
from mockserve.routes.shared import SERVICE, read_body, reply_id
from mockserve.service import unix_time


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    chat = parse_chat(body)
    service.check_model(chat.model)
    refuse_unavailable(body)
    refuse_bad_bias(body, service.planner.tokenizer.vocabulary_size)
    text = service.planner.conversations.prompt(body, service.model_names[0])
    prompt = service.planner.encode(text)
    bodies = ChatBodies(
        id=reply_id(request, "chatcmpl", chat.request_id),
        created=unix_time(),
        model=service.model_names[0],
        fingerprint=service.fingerprint,
        ends_with_usage=chat.delivery.include_usage,
    )
    form = chat_form(body, text, service.model_names[0])
    choices = service.planner.plan(prompt, chat.sampling, bodies.id, chat.cache_salt, form)
    return await answer(request, service, bodies, chat.delivery, [choices], arrived)
