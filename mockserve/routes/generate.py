"""POST /inference/v1/generate."""

from aiohttp import web

from mockserve.answering.answer import answer, refuse
from mockserve.connections.stamped import arrived_at
from mockserve.planning.generate import plan_generate
from mockserve.protocol.errors import ApiError
from mockserve.protocol.generate import parse_generate
from mockserve.replies.frames import DONE
from mockserve.replies.stream_errors import OTHER_ERRORS
from mockserve.routes.shared import aside, check_rank, planned, read_body, reply_id, wanted_priority
from mockserve.serving.service import SERVICE


async def generate(request: web.Request) -> web.StreamResponse:
    """Continue token ids, and answer with token ids."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = await aside(request, parse_generate, body)
    adapter = service.check_model(asked.model)
    name = reply_id(request, "generate-tokens", asked.common.request_id)
    try:
        plan = plan_generate(service, asked, name, adapter, wanted_priority(request))
        job = await planned(request, asked.sampling, plan)
        check_rank(request, service)
    except ApiError as error:
        return await refuse(request, error, asked.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    return await answer(request, service, job, arrived)
