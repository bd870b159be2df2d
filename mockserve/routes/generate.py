"""Completions of token ids."""

from aiohttp import web

from mockserve.http.connection import arrived_at
from mockserve.protocol.errors import ApiError
from mockserve.protocol.generate import parse_generate
from mockserve.reply.frames import DONE, OTHER_ERRORS
from mockserve.reply.stream import answer, refuse
from mockserve.routes.shared import (
    GENERATES,
    offload,
    read_body,
    reply_id,
    requested_priority,
    run_plan,
)
from mockserve.serving.generate import plan_generate
from mockserve.serving.service import SERVICE


async def generate(request: web.Request) -> web.StreamResponse:
    """Continue a prompt of token ids; the reply has token ids."""
    request[GENERATES] = True
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.delivery.driver)
    api_request = await offload(request, parse_generate, body)
    adapter = service.model.check_model(api_request.model)
    name = reply_id(request, "generate-tokens", api_request.common.request_id)
    try:
        plan = plan_generate(service.model, api_request, name, adapter, requested_priority(request))
        job = await run_plan(request, api_request.sampling, plan)
    except ApiError as error:
        return await refuse(request, error, api_request.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    return await answer(request, service.delivery, job, arrived)
