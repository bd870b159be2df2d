"""GET /health, /ping, /version and /load: small answers about the server itself."""

from aiohttp import web

from mockserve.protocol.json_text import compact_json
from mockserve.serving.service import SERVICE, VLLM_VERSION


async def health(request: web.Request) -> web.StreamResponse:
    """Empty: 200, or 503 once the engine has failed, no instance takes requests, or the server is told to stop."""
    service = request.app[SERVICE]
    return web.Response(status=200 if service.is_ready else 503)


async def version(_request: web.Request) -> web.StreamResponse:
    """The vLLM release whose interface this is."""
    return web.Response(body=compact_json({"version": VLLM_VERSION}), content_type="application/json")


async def load(request: web.Request) -> web.StreamResponse:
    """How many requests are being answered, if that is tracked."""
    service = request.app[SERVICE]
    number = service.num_answering if service.tracks_load else 0
    return web.Response(body=compact_json({"server_load": number}), content_type="application/json")
