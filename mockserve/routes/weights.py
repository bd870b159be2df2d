"""GET /weight_info and /get_world_size; POST /update_weight_version and /collective_rpc."""

from aiohttp import web

from mockserve.protocol.errors import bad_request
from mockserve.protocol.reading.body import Fields
from mockserve.protocol.reading.query import query_flag
from mockserve.routes.shared import json_reply, read_body, read_object
from mockserve.serving.service import SERVICE


async def weight_info(request: web.Request) -> web.StreamResponse:
    """The version of the weights, as it was last set."""
    return json_reply({"weight_version": request.app[SERVICE].weight_version})


async def update_weight_version(request: web.Request) -> web.StreamResponse:
    """Name the weights that are there now."""
    fields = Fields(await read_body(request))
    version = fields.required_text("new_version")
    fields.check()
    request.app[SERVICE].weight_version = version
    return json_reply({"success": True, "new_version": version})


async def world_size(request: web.Request) -> web.StreamResponse:
    """How many GPUs the deployment has, its data-parallel replicas included or not."""
    deployment = request.app[SERVICE].deployment
    replicas = deployment.dp if query_flag(request.query, "include_dp", True) else 1
    return json_reply({"world_size": deployment.tp * replicas})


async def collective_rpc(request: web.Request) -> web.StreamResponse:
    """What each worker answers to a call: nothing."""
    body = await read_object(request)
    if body.get("method") is None:
        raise bad_request("Missing 'method' in request body")
    return json_reply({"results": [None] * request.app[SERVICE].deployment.tp})
