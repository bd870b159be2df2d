"""POST /v1/decisions and /v1/systemone: bodies are checked, and refused as by a model that makes no decisions."""

from aiohttp import web

from mockserve.protocol.server.decisions import check_decision, check_structured_decision, unsupported
from mockserve.routes.shared import read_body


async def decide(request: web.Request) -> web.StreamResponse:
    """Refuse a well-formed body with status 501."""
    check_decision(await read_body(request))
    raise unsupported("Decisions")


async def decide_structured(request: web.Request) -> web.StreamResponse:
    """Refuse a well-formed body with status 501."""
    check_structured_decision(await read_body(request))
    raise unsupported("structured decision")
