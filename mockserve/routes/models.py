"""GET /v1/models."""

from aiohttp import web

from mockserve.protocol.server.models import ServedModel, model_list
from mockserve.replies.identity import new_id, unix_time
from mockserve.routes.shared import json_reply
from mockserve.serving.service import SERVICE


async def models(request: web.Request) -> web.StreamResponse:
    """A card for each served name and each adapter."""
    service = request.app[SERVICE]
    limit = service.planner.max_model_len
    served = [ServedModel(name, service.root, max_model_len=limit) for name in service.model_names]
    served += [ServedModel(each.name, each.path, parent=each.parent) for each in service.adapters]
    return json_reply(model_list(served, unix_time(), [new_id() for _ in served]))
