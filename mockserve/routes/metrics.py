"""GET /metrics."""

from aiohttp import web

from mockserve.metrics.page import CONTENT_TYPE, MOUNTED_CONTENT_TYPE
from mockserve.serving.service import SERVICE


async def metrics(request: web.Request) -> web.StreamResponse:
    """The present figures as Prometheus text."""
    source = request.app[SERVICE].metrics_source
    page = await source.page(request.query.getall("name[]", ()))
    is_mounted = request.method == "HEAD" or request.path.endswith("/")
    return web.Response(body=page, headers={"Content-Type": MOUNTED_CONTENT_TYPE if is_mounted else CONTENT_TYPE})
