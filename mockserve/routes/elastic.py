"""POST /scale_elastic_ep and /is_scaling_elastic_ep: the number of data-parallel engines is fixed here."""

from typing import Any

from aiohttp import web

from mockserve.protocol.errors import ApiError, bad_request, wrong_media_type
from mockserve.routes.shared import json_reply, read_fields
from mockserve.serving.service import SERVICE

DEFAULT_DRAIN_TIMEOUT_S = 120


async def scale_elastic_ep(request: web.Request) -> web.StreamResponse:
    """Succeeds for the number of engines there is, fails for any other."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    body = await read_fields(request, "Invalid JSON format")
    wanted = body.get("new_data_parallel_size")
    if wanted is None:
        raise bad_request("new_data_parallel_size is required")
    _demand_positive("new_data_parallel_size", wanted)
    _demand_positive("drain_timeout", body.get("drain_timeout", DEFAULT_DRAIN_TIMEOUT_S))
    if wanted != request.app[SERVICE].deployment.dp:
        raise ApiError("Scale failed", status=500, kind="Internal Server Error")
    return json_reply({"message": f"Scaled to {wanted} data parallel engines"})


async def is_scaling_elastic_ep(_request: web.Request) -> web.StreamResponse:
    """Never."""
    idle = {"phase": "idle", "epoch": None, "error": None, "requested_data_parallel_size": None}
    return json_reply({"is_scaling_elastic_ep": False, **idle})


def _demand_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or value <= 0:
        raise bad_request(f"{name} must be a positive integer")
