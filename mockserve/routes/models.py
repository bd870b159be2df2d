"""GET /v1/models."""

from aiohttp import web

from mockserve.protocol.json_text import compact_json
from mockserve.protocol.models import model_list
from mockserve.routes.shared import SERVICE
from mockserve.service import new_id, unix_time


async def models(request: web.Request) -> web.StreamResponse:
    """A card for each served name."""
    service = request.app[SERVICE]
    cards = model_list(
        service.model_names, service.root, service.planner.max_model_len, unix_time(), permission_id=new_id()
    )
    return web.Response(body=compact_json(cards), content_type="application/json")
