"""POST /v1/completions."""

from aiohttp import web

from mockserve.answering.answer import answer, refuse
from mockserve.answering.load_header import ASKED_BY, load_headers
from mockserve.connections.stamped import arrived_at
from mockserve.planning.completions import plan_completion
from mockserve.protocol.errors import ApiError
from mockserve.replies.frames import DONE
from mockserve.replies.stream_errors import OTHER_ERRORS
from mockserve.routes.shared import check_rank, parsed, planned, read_body, reply_id, wanted_priority
from mockserve.serving.service import SERVICE


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one or several prompts."""
    service = request.app[SERVICE]
    body = await read_body(request)
    arrived = arrived_at(request, service.driver)
    asked = await parsed(request, service.completions, body)
    adapter = service.check_model(asked.model)
    name = reply_id(request, "cmpl", asked.common.request_id)
    try:
        priority = wanted_priority(request)
        plan = plan_completion(service, asked, body, name, adapter, priority)
        job = await planned(request, asked.sampling, plan)
        check_rank(request, service)
    except ApiError as error:
        return await refuse(request, error, asked.delivery.stream, [OTHER_ERRORS.event(error), DONE])
    headers = load_headers(request.headers.get(ASKED_BY), service.driver.engine)
    return await answer(request, service, job, arrived, headers)
