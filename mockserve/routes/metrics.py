"""GET /metrics."""

from aiohttp import web

from mockserve.prometheus import CONTENT_TYPE
from mockserve.routes.shared import SERVICE


async def metrics(request: web.Request) -> web.StreamResponse:
    """The present figures as Prometheus text."""
    source = request.app[SERVICE].metrics_source
    return web.Response(body=source.exposition(), headers={"Content-Type": CONTENT_TYPE})
