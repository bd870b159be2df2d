"""POST /v1/chat/completions."""

from aiohttp import web

from mockserve.answering.answer import answer, refuse
from mockserve.answering.load_header import ASKED_BY, load_headers
from mockserve.connections.stamped import arrived_at
from mockserve.planning.chat import plan_chat
from mockserve.protocol.errors import ApiError
from mockserve.routes.shared import check_rank, parsed, planned, read_body, reply_id, wanted_priority
from mockserve.serving.service import SERVICE


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    chat = await parsed(request, service.chats, body)
    adapter = service.check_model(chat.model)
    name = reply_id(request, "chatcmpl", chat.common.request_id)
    try:
        priority = wanted_priority(request)
        plan = plan_chat(service, chat, body, name, adapter, priority)
        job = await planned(request, chat.sampling, plan)
        check_rank(request, service)
    except ApiError as error:
        return await refuse(request, error, chat.delivery.stream)
    headers = load_headers(request.headers.get(ASKED_BY), service.driver.engine)
    return await answer(request, service, job, arrived, headers)
